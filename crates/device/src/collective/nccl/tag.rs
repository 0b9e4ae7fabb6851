//! What a rank calls, as text for errors and as a number that ranks compare.
//!
//! NCCL sends no tags: of two calls that differ it only notices some whose lengths differ, and adds up the rest. So
//! ranks may gather the numbers of their tags before each call. Promises that equal tags have equal numbers on every
//! machine and in every build. Never looks at values.

use std::fmt;

use super::super::{Reduce, StepTag};
use super::calls::{Element, Op};

/// One call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag<'a> {
    pub step: StepTag,
    /// Number of the call within its step.
    pub seq: u64,
    pub action: Action<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action<'a> {
    /// An operation on so many values.
    Values(Op, Element, usize),
    /// A gather of f32 parts of these lengths.
    Gather(&'a [usize]),
    Barrier,
}

impl Tag<'_> {
    /// FNV-1a of the text: it depends on nothing but what every rank can know.
    pub(super) fn number(&self) -> i64 {
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let text = self.to_string();
        text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix).cast_signed()
    }
}

impl fmt::Display for Tag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |by| if by == Reduce::Sum { "sum" } else { "max" };
        match self.action {
            Action::Barrier => f.write_str("barrier")?,
            Action::Gather(counts) => write!(f, "gather of f32 in parts of {counts:?}")?,
            Action::Values(op, element, len) => {
                match op {
                    Op::AllReduce(reduce) => write!(f, "all_reduce({})", by(reduce))?,
                    Op::ReduceToLeader(reduce) => write!(f, "reduce_to_leader({})", by(reduce))?,
                    Op::AllGather => f.write_str("all_gather")?,
                    Op::Broadcast => f.write_str("broadcast")?,
                }
                write!(f, " of {len} {}", element.name())?;
            }
        }
        write!(f, ", call {} of step {} in epoch {}", self.seq, self.step.step, self.step.epoch)
    }
}

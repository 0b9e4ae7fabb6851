//! What a rank calls: the tag that ranks compare before they use each other's values.
//!
//! Promises that two calls are equal only if every rank would exchange the same lengths of the same type in the same
//! way. Never looks at the values.

use std::fmt;

use super::{Reduce, StepTag, Values};

/// One call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub step: StepTag,
    /// Number of the call within its step.
    pub seq: u64,
    pub op: Op,
    pub kind: Kind,
    /// Elements of the result.
    pub len: u64,
    /// Digest of the parts' lengths, for a gather.
    pub counts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    AllReduce(Reduce),
    ReduceToLeader(Reduce),
    Gather,
    Broadcast,
    Barrier,
}

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    Bf16,
    I64,
    F64,
}

impl Op {
    const ALL: [Self; 7] = [
        Self::AllReduce(Reduce::Sum),
        Self::AllReduce(Reduce::Max),
        Self::ReduceToLeader(Reduce::Sum),
        Self::ReduceToLeader(Reduce::Max),
        Self::Gather,
        Self::Broadcast,
        Self::Barrier,
    ];

    /// As one byte of a header.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::AllReduce(Reduce::Sum) => 0,
            Self::AllReduce(Reduce::Max) => 1,
            Self::ReduceToLeader(Reduce::Sum) => 2,
            Self::ReduceToLeader(Reduce::Max) => 3,
            Self::Gather => 4,
            Self::Broadcast => 5,
            Self::Barrier => 6,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }
}

impl Kind {
    const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::I64, Self::F64];

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::I64 | Self::F64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// As one byte of a header.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 1,
            Self::I64 => 2,
            Self::F64 => 3,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |by| if by == Reduce::Sum { "sum" } else { "max" };
        match self.op {
            Op::AllReduce(reduce) => write!(f, "all_reduce({})", by(reduce))?,
            Op::ReduceToLeader(reduce) => write!(f, "reduce_to_leader({})", by(reduce))?,
            Op::Gather => f.write_str("gather")?,
            Op::Broadcast => f.write_str("broadcast")?,
            Op::Barrier => f.write_str("barrier")?,
        }
        write!(f, " of {} {}", self.len, self.kind.name())?;
        if self.op == Op::Gather {
            write!(f, " in parts {:#010x}", self.counts)?;
        }
        write!(f, ", call {} of step {} in epoch {}", self.seq, self.step.step, self.step.epoch)
    }
}

impl Call {
    /// One number for the whole tag, for a transport that cannot send tags: FNV-1a of the text, which depends on nothing
    /// but what every rank can know.
    pub(super) fn number(&self) -> i64 {
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let text = self.to_string();
        text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix).cast_signed()
    }
}

/// Numbers the calls of one rank.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    step: StepTag,
    next: u64,
}

impl Numbering {
    pub(super) fn begin_step(&mut self, step: StepTag) {
        *self = Self { step, next: 0 };
    }

    /// The next call, over `values`.
    pub(super) fn call(&mut self, op: Op, values: &Values<'_>) -> Call {
        let kind = match values {
            Values::F32(_) => Kind::F32,
            Values::Bf16(_) => Kind::Bf16,
            Values::F64(_) => Kind::F64,
            Values::I64(_) => Kind::I64,
        };
        self.number(op, kind, values.len(), 0)
    }

    /// The next call, a gather of parts of these lengths.
    pub(super) fn gather(&mut self, counts: &[usize]) -> Call {
        let digest = crc32fast::hash(bytemuck::cast_slice(counts));
        self.number(Op::Gather, Kind::F32, counts.iter().sum(), digest)
    }

    /// The next call, a barrier.
    pub(super) fn barrier(&mut self) -> Call {
        self.number(Op::Barrier, Kind::F32, 0, 0)
    }

    fn number(&mut self, op: Op, kind: Kind, len: usize, counts: u32) -> Call {
        let call = Call { step: self.step, seq: self.next, op, kind, len: len as u64, counts };
        self.next += 1;
        call
    }
}

/// A gather's arguments must fit each other: only a bug of this rank can break that, so it is not an error.
pub(super) fn assert_gather(part: &[f32], counts: &[usize], whole: &[f32], rank: usize, world: usize) {
    assert_eq!(counts.len(), world, "a gather names the length of every rank's part");
    assert_eq!(part.len(), counts[rank], "rank {rank}'s part has the length that it names");
    let fits = rank > 0 || whole.len() == counts.iter().sum::<usize>();
    assert!(fits, "rank 0 has room for all parts");
}

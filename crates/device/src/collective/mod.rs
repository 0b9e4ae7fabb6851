//! Sums and copies across the ranks of a group.
//!
//! Owns the trait that every transport implements. Every call carries a tag: the step it belongs to, its number within
//! the step, the operation, the element type and the lengths. Promises that ranks which do not call the same thing in
//! the same order get an error and never a wrong sum, that a sum has the same bits on every rank, and that no call
//! waits longer than the transport's timeout. (NCCL adds in an order of its own and sees a mismatch only where tags are
//! checked; see [`nccl`].) Never retries: after an error the group is over.

mod call;
mod element;
mod error;
mod failure;
mod faulty;
pub mod nccl;
mod single;
mod tcp;
mod threads;
mod timed;

use std::sync::Arc;

pub use error::CollectiveError;
pub use faulty::{Fault, Faulty};
pub use single::Single;
pub use tcp::{Connection, ConnectionError, RankTls, RankTlsError, TcpRank};
pub use threads::{ThreadGroup, ThreadRank};
pub use timed::{CallTimer, Timed};

/// The step that calls belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTag {
    /// Of the group; a group that failed comes back with a larger one.
    pub epoch: u64,
    pub step: u64,
}

/// One rank's end of a group. It stays on one thread at a time; all ranks make the same calls in the same order.
pub trait Collective: Send + std::fmt::Debug {
    /// From 0; rank 0 is the leader.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn world(&self) -> usize;

    /// The calls that follow belong to this step; their numbers begin at 0.
    fn begin_step(&mut self, step: StepTag);

    /// Leaves in `data`, on every rank, the reduction over all ranks. Floats are added in the order of the ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; what `data` holds then is not to be used.
    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError>;

    /// As [`Collective::all_reduce`], on rank 0 only; the others keep their `data`.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError>;

    /// Puts every rank's `part` behind each other in rank 0's `whole`, in the order of the ranks. `counts[r]` is the
    /// length of rank r's part, the same on every rank; rank 0's `whole` has room for all, the others keep theirs,
    /// which may be empty.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError>;

    /// Gives every rank what rank 0 has in `data`.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn broadcast(&mut self, data: Values<'_>) -> Result<(), CollectiveError>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Ends the group from any thread: a call that waits, here or on another rank, returns an error soon.
    fn abort_handle(&self) -> AbortHandle;

    /// What has crossed ranks so far.
    fn traffic(&self) -> Traffic;
}

/// Elements of one of the types that ranks exchange.
#[derive(Debug)]
pub enum Values<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [half::bf16]),
    F64(&'a mut [f64]),
    I64(&'a mut [i64]),
}

/// How values of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    Sum,
    Max,
}

/// Counts of one rank since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub calls: u64,
    /// What this rank sent to another: frames, or values that others read.
    pub messages: u64,
    /// Bytes of payload that this rank sent.
    pub bytes: u64,
}

/// Ends a group. Cheap to clone; calling it again does nothing.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn(&str) + Send + Sync>);

impl AbortHandle {
    pub(crate) fn new(abort: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(abort))
    }

    /// Ends the group; `reason` is what the other ranks are told.
    pub fn abort(&self, reason: &str) {
        (self.0)(reason);
    }
}

impl std::fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AbortHandle")
    }
}

#[cfg(test)]
mod tests;

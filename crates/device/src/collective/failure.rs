//! How a group ended. One rank finds the failure, and the others are told.
//!
//! Promises that every rank gets an error that is true from where it stands. Never changes once it is recorded.

use super::CollectiveError;
use super::call::Call;

/// The first failure of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The rank that found it.
    pub by: usize,
    pub error: CollectiveError,
}

impl Failure {
    /// The error of rank `me`, which is in `call` or about to begin it.
    pub(super) fn seen_by(&self, me: usize, call: &Call) -> CollectiveError {
        match &self.error {
            CollectiveError::Mismatch { rank, ours, theirs } if self.by != me => {
                let (own, finder) = (call.to_string(), self.by);
                // Of the two that disagree, the one that disagrees with this rank as well.
                let (rank, ours, theirs) = if *rank == me {
                    (finder, theirs.clone(), ours.clone())
                } else if own == *theirs {
                    (finder, own, ours.clone())
                } else {
                    (*rank, own, theirs.clone())
                };
                CollectiveError::Mismatch { rank, ours, theirs }
            }
            other => other.clone(),
        }
    }

    /// That rank `me` leaves: its end of the group was dropped.
    pub(super) fn left(me: usize) -> Self {
        let reason = if std::thread::panicking() { "it panicked" } else { "it left the group" };
        Self { by: me, error: CollectiveError::Gone { rank: me, reason: reason.to_owned() } }
    }

    /// That rank `me` was told to end the group.
    pub(super) fn aborted(me: usize, reason: &str) -> Self {
        Self { by: me, error: CollectiveError::Aborted { reason: reason.to_owned() } }
    }

    /// That rank `me` called `ours` where `rank` called `theirs`.
    pub(super) fn mismatch(me: usize, ours: &Call, rank: usize, theirs: String) -> Self {
        let ours = ours.to_string();
        Self { by: me, error: CollectiveError::Mismatch { rank, ours, theirs } }
    }
}

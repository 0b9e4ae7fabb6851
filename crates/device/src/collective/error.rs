//! Why a call across ranks failed. Whatever it is, the group is over: ranks may hold different sums.

use std::time::Duration;

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

/// Why a call across ranks failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CollectiveError {
    /// Ranks called different things: a bug, or memory that changed by itself.
    #[error("rank {rank} called {theirs}, this rank {ours}")]
    Mismatch { rank: usize, ours: String, theirs: String },
    #[error("rank {rank} was silent for {waited:?} in {call}")]
    Timeout { rank: usize, waited: Duration, call: String },
    #[error("rank {rank} is gone ({reason})")]
    Gone { rank: usize, reason: String },
    #[error("the bytes from rank {rank} are damaged: checksum {found:#010x} instead of {expected:#010x}")]
    Damaged { rank: usize, expected: u32, found: u32 },
    #[error("the group was ended: {reason}")]
    Aborted { reason: String },
    /// The transport's own fault: a library, a device, memory.
    #[error("{transport} failed: {reason}")]
    Transport { transport: &'static str, reason: String },
}

impl CollectiveError {
    /// The rank that it is about; `None` where it is no rank's, or nobody knows whose.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Mismatch { rank, .. }
            | Self::Timeout { rank, .. }
            | Self::Gone { rank, .. }
            | Self::Damaged { rank, .. } => Some(*rank),
            Self::Aborted { .. } | Self::Transport { .. } => None,
        }
    }
}

impl Coded for CollectiveError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Unavailable
    }
}

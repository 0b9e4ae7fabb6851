//! Why a scripted worker refuses, with the codes of the real one.

use hawser_common::group::Owner;
use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    #[error("the group may have lost its lease")]
    Fenced,
    #[error("the session is owned by group {} (epoch {})", .0.group, .0.epoch)]
    Stale(Owner),
    #[error("{0}")]
    NotClaimed(String),
    #[error("the history is not held here; send it whole")]
    Lost,
    #[error("the turn has no messages")]
    Empty,
    #[error("the script has no such call")]
    NotScripted,
}

impl Coded for Refusal {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Fenced | Self::NotClaimed(_) => ErrorCode::Unavailable,
            Self::Stale(_) => ErrorCode::StaleOwner,
            Self::Lost => ErrorCode::SessionLost,
            Self::Empty | Self::NotScripted => ErrorCode::Invalid,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Stale(owner) => Some(owner),
            Self::Fenced | Self::NotClaimed(_) | Self::Lost | Self::Empty | Self::NotScripted => None,
        }
    }
}

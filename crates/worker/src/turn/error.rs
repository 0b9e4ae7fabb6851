//! Why a turn was refused or ended early.

use std::time::Duration;

use hawser_common::group::Owner;
use hawser_common::retention::InvalidRetention;
use hawser_common::{Coded, ErrorCode};
use hawser_model::sampling::SampleError;
use hawser_model::text::RenderError;
use thiserror::Error;

use crate::scheduler::Refusal;

/// Whatever can happen to a turn at its leader.
#[derive(Debug, Error)]
pub enum TurnError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}, one of them generated: shorten it"
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    UnknownToken { id: u32, vocabulary: usize },
    #[error("the answer cannot go on here after {tokens} tokens: {reason}; is this the same model?")]
    Begun { tokens: usize, reason: &'static str },
    #[error(transparent)]
    Retention(#[from] InvalidRetention),
    #[error("the intent names {what} {end} of {count}")]
    Intent { what: &'static str, end: u32, count: usize },
    #[error("the intent's text has {tokens} tokens; at most {most} are run")]
    IntentTooLong { tokens: usize, most: usize },
    #[error("the session's history is not held here; send the whole conversation")]
    SessionLost,
    #[error("the session was built from token ids; go on with token ids, or send the whole conversation")]
    NoMessages,
    #[error("the session is owned by group {} in epoch {}", .0.group, .0.epoch)]
    StaleOwner(Owner),
    #[error("the group is draining and takes no turns")]
    Draining,
    #[error("the group's lease may have expired; it serves nothing until it has a new one")]
    Fenced,
    #[error("the placement store did not grant the session: {detail}")]
    ClaimFailed { detail: String },
    #[error("{waiting} turns of this session are waiting already")]
    SessionBusy { waiting: usize },
    #[error("{sessions} sessions are held already and none has been idle for long")]
    TooManySessions { sessions: usize },
    #[error("the driver's queue is full")]
    DriverBusy,
    #[error("the driver has stopped")]
    DriverStopped,
    #[error("the deadline passed")]
    Deadline,
    #[error("the turn was aborted")]
    Aborted,
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("the group failed during the turn ({reason}); try again")]
    GroupFailed { reason: String },
    #[error("a rank of the group is missing; it serves nothing until all are there")]
    GroupDown,
    #[error("the turn's worker task failed")]
    TaskFailed,
}

/// A full queue empties in about the time of a few steps.
const RETRY_AFTER: Duration = Duration::from_millis(200);

impl Coded for TurnError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Render(error) => error.code(),
            Self::Retention(error) => error.code(),
            Self::PromptTooLong { .. }
            | Self::UnknownToken { .. }
            | Self::Begun { .. }
            | Self::Intent { .. }
            | Self::IntentTooLong { .. }
            | Self::NoMessages => ErrorCode::Invalid,
            Self::SessionLost => ErrorCode::SessionLost,
            Self::StaleOwner(_) => ErrorCode::StaleOwner,
            Self::Draining
            | Self::Fenced
            | Self::ClaimFailed { .. }
            | Self::DriverStopped
            | Self::GroupFailed { .. }
            | Self::GroupDown => ErrorCode::Unavailable,
            Self::SessionBusy { .. } | Self::TooManySessions { .. } | Self::DriverBusy => {
                ErrorCode::Exhausted
            }
            Self::Deadline => ErrorCode::Deadline,
            Self::Aborted => ErrorCode::Cancelled,
            Self::Sample(_) | Self::TaskFailed => ErrorCode::Internal,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        matches!(self.code(), ErrorCode::Exhausted).then_some(RETRY_AFTER)
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::StaleOwner(owner) => Some(owner),
            _ => None,
        }
    }
}

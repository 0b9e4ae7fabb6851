//! Why a router refused a call, or ended one early.

use std::time::Duration;

use hawser_common::group::Owner;
use hawser_common::{Coded, ErrorCode, GroupId, SessionId, TenantId};
use hawser_proto::{Fault, InvalidRequest};
use thiserror::Error;

use crate::handle::InvalidHandle;

/// How long to wait after a refusal that passes by itself.
const RETRY: Duration = Duration::from_secs(1);

/// What the router answers with when it does not answer with what a worker said.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RouteError {
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    #[error("no group serves the model {name:?}; served are: {known}")]
    UnknownModel { name: String, known: String },
    #[error("the request names no model and several are served; name one of: {known}")]
    WhichModel { known: String },
    #[error("session {session} runs on the model {held:?} and not on {asked:?}; use one session per model")]
    WrongModel { session: SessionId, held: String, asked: String },
    #[error("session {session} is not known; open it, or send its first turn")]
    UnknownSession { session: SessionId },
    #[error("no group {name:?} is registered, and none has left in the last minutes")]
    UnknownGroup { name: String },
    #[error(
        "no worker group is registered; start one with `hawser worker --model <file>` against this router's store, \
         or everything at once with `hawser up --model <file>`"
    )]
    NoGroups,
    #[error("no group takes new sessions now: {tried} were tried, the others are draining; try again")]
    NoneLeft { tried: usize },
    #[error(
        "no place for a call of tenant {tenant}: this router takes {limit} calls at a time and {own} of a tenant; \
         {queued} wait; try again later"
    )]
    Busy { tenant: TenantId, limit: usize, own: u32, queued: usize },
    #[error(
        "tenant {tenant} calls more often than its {per_s} times a second; try again in {retry_after:.1?}"
    )]
    TooSoon { tenant: TenantId, per_s: u32, retry_after: Duration },
    #[error(
        "tenant {tenant} has {held} sessions open, and {limit} are allowed; close some, or let them expire"
    )]
    TooManySessions { tenant: TenantId, held: u64, limit: u64 },
    #[error("an API key is asked for; send it in the metadata `authorization: Bearer <key>`")]
    NoKey,
    #[error("the API key is not known")]
    WrongKey,
    #[error("only keys marked `operator = true` may do this")]
    NotOperator,
    #[error(transparent)]
    Handle(#[from] InvalidHandle),
    #[error("the deadline passed before an answer")]
    Deadline,
    #[error("group {group} owns the session and does not answer ({reason}); try again, its lease ends soon")]
    OwnerSilent { group: GroupId, reason: String },
    #[error("the session's owner changed {redirects} times during this call; try again")]
    Unsettled { redirects: u32 },
    #[error("the connection to group {group} broke ({reason}); whether the call took effect is not known")]
    Broken { group: GroupId, reason: String },
    #[error(
        "the connection to group {group} broke ({reason}) and the turn may have run; resend the whole conversation"
    )]
    BrokenDelta { group: GroupId, reason: String },
    #[error(
        "group {group} stopped in the middle of the turn after {frames} frames: {reason}; send the turn again"
    )]
    CutShort { group: GroupId, frames: u64, reason: String },
    #[error("this router is shutting down; try again at another one")]
    ShuttingDown,
    /// What a worker said, passed on.
    #[error(transparent)]
    Worker(Fault),
}

impl Coded for RouteError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Request(_) | Self::WhichModel { .. } | Self::WrongModel { .. } | Self::Handle(_) => {
                ErrorCode::Invalid
            }
            Self::UnknownModel { .. } | Self::UnknownSession { .. } | Self::UnknownGroup { .. } => {
                ErrorCode::NotFound
            }
            Self::NoGroups
            | Self::NoneLeft { .. }
            | Self::OwnerSilent { .. }
            | Self::Unsettled { .. }
            | Self::Broken { .. }
            | Self::CutShort { .. }
            | Self::ShuttingDown => ErrorCode::Unavailable,
            Self::Busy { .. } | Self::TooSoon { .. } | Self::TooManySessions { .. } => ErrorCode::Exhausted,
            Self::NoKey | Self::WrongKey => ErrorCode::Unauthenticated,
            Self::NotOperator => ErrorCode::Forbidden,
            Self::Deadline => ErrorCode::Deadline,
            Self::BrokenDelta { .. } => ErrorCode::SessionLost,
            Self::Worker(fault) => fault.code,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Worker(fault) => fault.retry_after,
            Self::TooSoon { retry_after, .. } => Some(*retry_after),
            _ => matches!(self.code(), ErrorCode::Exhausted | ErrorCode::Unavailable).then_some(RETRY),
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Worker(fault) => fault.owner.as_ref(),
            _ => None,
        }
    }
}

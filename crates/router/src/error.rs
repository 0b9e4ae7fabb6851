//! Why a router refused a call, or ended one early.

use std::time::Duration;

use hawser_common::group::Owner;
use hawser_common::hint::without_hint;
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
    #[error(
        "group {group} owns the session and does not answer ({}); try again, its lease ends soon",
        without_hint(reason)
    )]
    OwnerSilent { group: GroupId, reason: String },
    #[error("the session's owner changed {redirects} times during this call; try again")]
    Unsettled { redirects: u32 },
    #[error(
        "the connection to group {group} broke ({}); whether the call took effect is not known",
        without_hint(reason)
    )]
    Broken { group: GroupId, reason: String },
    #[error(
        "the connection to group {group} broke ({}) and the turn may have run; resend the whole conversation",
        without_hint(reason)
    )]
    BrokenDelta { group: GroupId, reason: String },
    #[error(
        "group {group} stopped in the middle of the turn after {frames} frames: {}; send the turn again",
        without_hint(reason)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_is_quoted_is_not_told_beside_the_own_one() {
        let group = GroupId::parse("a").expect("a valid id");
        let reason = || "the group failed during the turn (rank 1 is gone); try again".to_owned();
        let silent = RouteError::OwnerSilent { group: group.clone(), reason: reason() };
        let cut = RouteError::CutShort { group: group.clone(), frames: 3, reason: reason() };
        let lost = RouteError::BrokenDelta { group, reason: reason() };
        for (error, hint) in [(silent, "; try again"), (cut, "; send the turn"), (lost, "; resend the whole")]
        {
            let text = error.to_string();
            assert!(text.contains("(rank 1 is gone)") && text.contains(hint), "{text}");
            assert_eq!(text.matches(" again").count() + text.matches("resend").count(), 1, "{text}");
        }
    }
}

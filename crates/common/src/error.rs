//! The closed set of error codes. Each operation has its own error enum; every variant maps to one code.

use std::time::Duration;

use crate::group::Owner;

/// What a caller can do about an error. Mapped to gRPC codes in one place, the `proto` crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request is wrong; sending it again will not help.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// The session is owned elsewhere, or the group has a newer epoch.
    StaleOwner,
    /// A bound was reached; try again later.
    Exhausted,
    /// Nothing happened; try again, maybe elsewhere.
    Unavailable,
    /// The session's history is not held any more: resend the whole conversation.
    SessionLost,
    /// The deadline passed.
    Deadline,
    /// The caller went away.
    Cancelled,
    /// No or unknown credentials.
    Unauthenticated,
    /// Known, but not allowed.
    Forbidden,
    /// A bug.
    Internal,
}

impl ErrorCode {
    /// Every code, in the order of the declaration.
    pub const ALL: [Self; 11] = [
        Self::Invalid,
        Self::NotFound,
        Self::StaleOwner,
        Self::Exhausted,
        Self::Unavailable,
        Self::SessionLost,
        Self::Deadline,
        Self::Cancelled,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Internal,
    ];

    /// Name used in logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::StaleOwner => "stale_owner",
            Self::Exhausted => "exhausted",
            Self::Unavailable => "unavailable",
            Self::SessionLost => "session_lost",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
        }
    }
}

/// An error that knows its code.
pub trait Coded: std::error::Error {
    fn code(&self) -> ErrorCode;

    /// How long to wait before the next try, where that is known.
    fn retry_after(&self) -> Option<Duration> {
        None
    }

    /// Who owns the session instead, for [`ErrorCode::StaleOwner`].
    fn owner(&self) -> Option<&Owner> {
        None
    }
}

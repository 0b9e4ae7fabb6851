//! What can go wrong at etcd, by what is to be done about it.
//!
//! etcd tells its errors apart by gRPC code and text; both are read here and nowhere else. The codes are numbers,
//! because the types of gRPC are no business of this crate.

use std::error::Error as _;

use etcd_client::Error;
use hawser_common::cause::innermost;

use crate::store::{LeaseId, StoreError};

const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const UNAUTHENTICATED: i32 = 16;

/// Why a call had no answer of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The lease ended or was never there.
    LeaseGone,
    /// The revision asked for is forgotten, or not reached: list anew.
    Compacted,
    /// The token has ended: authenticate again.
    TokenGone,
    /// The same call will not work.
    Invalid(String),
    /// etcd has no room.
    Full(String),
    /// The same call may work later; whether it happened is not known.
    Unreachable(String),
}

impl Fault {
    /// What the store's user is told about a call under `lease`.
    pub(super) fn into_error(self, lease: LeaseId) -> StoreError {
        match self {
            Self::LeaseGone => StoreError::LeaseGone { lease },
            Self::Invalid(reason) => StoreError::Invalid { reason },
            Self::Full(reason) => StoreError::Full { reason },
            Self::Unreachable(reason) => StoreError::Unreachable { reason },
            Self::Compacted => {
                StoreError::Unreachable { reason: "etcd has compacted what was being read".to_owned() }
            }
            Self::TokenGone => StoreError::Unreachable {
                reason: "etcd no longer takes the token; asking for a new one".to_owned(),
            },
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            // What has a cause was made on this side, and etcd has said nothing.
            Error::GRpcStatus(status) => match status.source() {
                Some(cause) => Self::Unreachable(innermost(cause)),
                None => of_status(status.code() as i32, status.message()),
            },
            // The client's own word for a renewal that was answered with no time left. Its other one is for a
            // connection that broke, after which the lease may well live.
            Error::LeaseKeepAliveError(reason) if reason == "lease not found" => Self::LeaseGone,
            Error::InvalidArgs(_)
            | Error::InvalidUri(_)
            | Error::Utf8Error(_)
            | Error::InvalidMetadataValue(_)
            | Error::EndpointsNotManaged => Self::Invalid(error.to_string()),
            Error::TransportError(error) => Self::Unreachable(innermost(&error)),
            Error::IoError(_)
            | Error::WatchError(_)
            | Error::LeaseKeepAliveError(_)
            | Error::ElectError(_)
            | Error::EndpointError(_)
            | Error::Internal(_) => Self::Unreachable(error.to_string()),
        }
    }
}

fn of_status(code: i32, message: &str) -> Fault {
    let reason = format!("etcd: {}", message.strip_prefix("etcdserver: ").unwrap_or(message));
    // By text first: these come with several codes over etcd's versions.
    if message.contains("required revision has been compacted") || message.contains("is a future revision") {
        return Fault::Compacted;
    }
    if message.contains("invalid auth token") || message.contains("revision of auth store is old") {
        return Fault::TokenGone;
    }
    match code {
        UNAUTHENTICATED => Fault::TokenGone,
        NOT_FOUND if message.contains("lease not found") => Fault::LeaseGone,
        INVALID_ARGUMENT if message.contains("too many operations") => {
            Fault::Invalid(format!("{reason}; start etcd with --max-txn-ops=128, its default, or more"))
        }
        INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION => Fault::Invalid(reason),
        RESOURCE_EXHAUSTED if message.contains("space exceeded") => {
            Fault::Full(format!("{reason}; compact and defragment etcd, or give it a larger quota"))
        }
        _ => Fault::Unreachable(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcds_words_become_what_is_to_be_done() {
        let unreachable = |reason: &str| Fault::Unreachable(reason.to_owned());
        for (code, message, expected) in [
            (5, "etcdserver: requested lease not found", Fault::LeaseGone),
            (11, "etcdserver: mvcc: required revision has been compacted", Fault::Compacted),
            (11, "etcdserver: mvcc: required revision is a future revision", Fault::Compacted),
            (16, "etcdserver: invalid auth token", Fault::TokenGone),
            (3, "etcdserver: revision of auth store is old", Fault::TokenGone),
            (7, "etcdserver: permission denied", Fault::Invalid("etcd: permission denied".to_owned())),
            (14, "etcdserver: no leader", unreachable("etcd: no leader")),
            (14, "etcdserver: request timed out", unreachable("etcd: request timed out")),
            (8, "etcdserver: too many requests", unreachable("etcd: too many requests")),
            (5, "something else", unreachable("etcd: something else")),
            (2, "", unreachable("etcd: ")),
        ] {
            assert_eq!(of_status(code, message), expected, "{code} {message}");
        }
        let full = of_status(8, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(&full, Fault::Full(reason) if reason.contains("larger quota")), "{full:?}");
        let many = of_status(3, "etcdserver: too many operations in txn request");
        assert!(matches!(&many, Fault::Invalid(reason) if reason.contains("--max-txn-ops")), "{many:?}");
    }
}

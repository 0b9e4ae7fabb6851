//! `tonic::Status` → domain error: what a caller can do about a status that came over the wire.

use std::error::Error;
use std::time::Duration;

use hawser_common::cause::innermost;
use hawser_common::group::Owner;
use hawser_common::{Coded, Epoch, ErrorCode, GroupId};
use prost::Message as _;
use thiserror::Error;
use tonic::{Code, Status};

use crate::status::{ERROR_INFO_URL, RpcStatus};
use crate::v1;

/// What tonic's own timers say, as CANCELLED, when grpc-timeout passes.
const TIMER: &str = "Timeout expired";

/// How far a call got before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The other side answered with this error: the code can be taken at its word.
    Answered,
    /// No connection was made: nothing was sent.
    Connect,
    /// Made on this side or by something between: whether the request ran is not known.
    Transport,
}

/// An error that another process answered with, or that happened on the way to it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Fault {
    pub code: ErrorCode,
    pub message: String,
    /// Who owns the session, for [`ErrorCode::StaleOwner`].
    pub owner: Option<Owner>,
    /// How long to wait before the next try.
    pub retry_after: Option<Duration>,
    pub origin: Origin,
}

impl Coded for Fault {
    fn code(&self) -> ErrorCode {
        self.code
    }
    fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
    fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }
}

/// Reads a status. An `ErrorInfo` in its details decides; without one the gRPC code does. A status without details
/// is never made by a Hawser server, so its origin is the connection or the transport.
#[must_use]
pub fn fault(status: &Status) -> Fault {
    let message = status.message().to_owned();
    if let Some(info) = error_info(status.details()) {
        let group = GroupId::parse(&info.owner_group).ok();
        return Fault {
            code: from_reason(info.reason()).unwrap_or_else(|| from_grpc(status)),
            message,
            owner: group.map(|group| Owner { group, epoch: Epoch(info.owner_epoch) }),
            retry_after: (info.retry_after_ms > 0).then(|| Duration::from_millis(info.retry_after_ms)),
            origin: Origin::Answered,
        };
    }
    let origin = if refused_to_connect(status) { Origin::Connect } else { Origin::Transport };
    let message = match message.as_str() {
        // tonic's own text, "tcp connect error" or what TLS calls it, is none for people.
        _ if origin == Origin::Connect => innermost(status),
        "" => format!("the call failed: {}", status.code()),
        TIMER => "there was no answer within the call's time".to_owned(),
        _ => message,
    };
    Fault { code: from_grpc(status), message, owner: None, retry_after: None, origin }
}

fn error_info(details: &[u8]) -> Option<v1::ErrorInfo> {
    if details.is_empty() {
        return None;
    }
    let packed = RpcStatus::decode(details).ok()?;
    let any = packed.details.iter().find(|any| any.type_url == ERROR_INFO_URL)?;
    v1::ErrorInfo::decode(any.value.as_slice()).ok()
}

/// Whether the channel could not connect, told from the chain of causes that tonic keeps on its own statuses.
fn refused_to_connect(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

const fn from_reason(reason: v1::Reason) -> Option<ErrorCode> {
    match reason {
        v1::Reason::Unspecified => None,
        v1::Reason::Invalid => Some(ErrorCode::Invalid),
        v1::Reason::StaleOwner => Some(ErrorCode::StaleOwner),
        v1::Reason::Exhausted => Some(ErrorCode::Exhausted),
        v1::Reason::Unavailable => Some(ErrorCode::Unavailable),
        v1::Reason::SessionLost => Some(ErrorCode::SessionLost),
        v1::Reason::Deadline => Some(ErrorCode::Deadline),
        v1::Reason::Cancelled => Some(ErrorCode::Cancelled),
        v1::Reason::Unauthenticated => Some(ErrorCode::Unauthenticated),
        v1::Reason::Forbidden => Some(ErrorCode::Forbidden),
        v1::Reason::Internal => Some(ErrorCode::Internal),
        v1::Reason::NotFound => Some(ErrorCode::NotFound),
    }
}

fn from_grpc(status: &Status) -> ErrorCode {
    match status.code() {
        Code::Cancelled if status.message() == TIMER => ErrorCode::Deadline,
        // hyper's text for a request that had no connection any more when its turn to be sent came.
        Code::Cancelled if status.message() == "operation was canceled" => ErrorCode::Unavailable,
        Code::Cancelled => ErrorCode::Cancelled,
        // tonic's text for a connection that the other end closed, in good order or not. A server that has something to
        // say about a call says it in words of its own.
        Code::Internal if status.message().starts_with("h2 protocol error") => ErrorCode::Unavailable,
        Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => ErrorCode::Invalid,
        Code::NotFound => ErrorCode::NotFound,
        Code::FailedPrecondition => ErrorCode::StaleOwner,
        Code::ResourceExhausted => ErrorCode::Exhausted,
        Code::Unavailable | Code::Aborted => ErrorCode::Unavailable,
        Code::DataLoss => ErrorCode::SessionLost,
        Code::DeadlineExceeded => ErrorCode::Deadline,
        Code::Unauthenticated => ErrorCode::Unauthenticated,
        Code::PermissionDenied => ErrorCode::Forbidden,
        // A broken connection is reported as UNKNOWN by the HTTP/2 layer; the server itself never says so.
        Code::Unknown => ErrorCode::Unavailable,
        Code::Ok | Code::Unimplemented | Code::Internal => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::status;

    const CODES: [ErrorCode; 11] = [
        ErrorCode::Invalid,
        ErrorCode::NotFound,
        ErrorCode::StaleOwner,
        ErrorCode::Exhausted,
        ErrorCode::Unavailable,
        ErrorCode::SessionLost,
        ErrorCode::Deadline,
        ErrorCode::Cancelled,
        ErrorCode::Unauthenticated,
        ErrorCode::Forbidden,
        ErrorCode::Internal,
    ];

    #[test]
    fn every_code_survives_the_wire_with_owner_and_hint() {
        for code in CODES {
            let sent = Fault {
                code,
                message: format!("a {} error", code.name()),
                owner: Some(Owner { group: GroupId::parse("g1").unwrap(), epoch: Epoch(7) }),
                retry_after: Some(Duration::from_millis(1500)),
                origin: Origin::Answered,
            };
            assert_eq!(fault(&status(&sent)), sent);
        }
    }

    #[test]
    fn a_status_without_details_keeps_its_code_but_is_not_an_answer() {
        for code in CODES {
            let (grpc, _) = crate::status::wire_code(code);
            let read = fault(&Status::new(grpc, "x"));
            assert_eq!((read.code, read.origin), (code, Origin::Transport), "{grpc:?}");
        }
        let late = fault(&Status::cancelled(TIMER));
        assert_eq!(late.code, ErrorCode::Deadline);
        assert!(late.message.contains("no answer"), "{late}");
        assert_eq!(fault(&Status::unknown("broken pipe")).code, ErrorCode::Unavailable);
        assert_eq!(fault(&Status::cancelled("operation was canceled")).code, ErrorCode::Unavailable);
        let closed = Status::internal("h2 protocol error: http2 error");
        assert_eq!((fault(&closed).code, fault(&closed).origin), (ErrorCode::Unavailable, Origin::Transport));
    }

    #[test]
    fn foreign_or_broken_details_are_ignored() {
        let broken = Status::with_details(Code::NotFound, "x", vec![0xff, 0x01, 0x02].into());
        assert_eq!(fault(&broken).code, ErrorCode::NotFound);
    }

    #[test]
    fn a_refused_connection_is_told_apart() {
        let refused = tonic::ConnectError("connection refused".into());
        let read = fault(&Status::from_error(Box::new(refused)));
        assert_eq!((read.code, read.origin), (ErrorCode::Unavailable, Origin::Connect));
    }
}

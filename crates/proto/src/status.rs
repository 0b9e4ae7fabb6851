//! Domain error → `tonic::Status`: the one place in Hawser where a status is made.
//!
//! The machine-readable part is an `ErrorInfo`, packed as `google.rpc.Status` in `grpc-status-details-bin`, which is
//! where the gRPC libraries of every language look for it.

use hawser_common::{Coded, ErrorCode};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use crate::v1;

/// `google.rpc.Status`, the container of error details.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// Type URL of the packed `ErrorInfo`.
pub(crate) const ERROR_INFO_URL: &str = "type.googleapis.com/hawser.v1.ErrorInfo";

/// The status of an error: its code, its text, and an `ErrorInfo` with the owner and the retry hint it knows.
#[must_use]
pub fn status(error: &dyn Coded) -> Status {
    let (code, reason) = wire_code(error.code());
    let owner = error.owner();
    let info = v1::ErrorInfo {
        reason: reason.into(),
        owner_group: owner.map_or_else(String::new, |owner| owner.group.to_string()),
        owner_epoch: owner.map_or(0, |owner| owner.epoch.0),
        retry_after_ms: error
            .retry_after()
            .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    };
    let message = error.to_string();
    let details = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![Any { type_url: ERROR_INFO_URL.to_owned(), value: info.encode_to_vec() }],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The gRPC code and the wire reason of an error code.
pub(crate) const fn wire_code(code: ErrorCode) -> (Code, v1::Reason) {
    match code {
        ErrorCode::Invalid => (Code::InvalidArgument, v1::Reason::Invalid),
        ErrorCode::NotFound => (Code::NotFound, v1::Reason::NotFound),
        ErrorCode::StaleOwner => (Code::FailedPrecondition, v1::Reason::StaleOwner),
        ErrorCode::Exhausted => (Code::ResourceExhausted, v1::Reason::Exhausted),
        ErrorCode::Unavailable => (Code::Unavailable, v1::Reason::Unavailable),
        ErrorCode::SessionLost => (Code::DataLoss, v1::Reason::SessionLost),
        ErrorCode::Deadline => (Code::DeadlineExceeded, v1::Reason::Deadline),
        ErrorCode::Cancelled => (Code::Cancelled, v1::Reason::Cancelled),
        ErrorCode::Unauthenticated => (Code::Unauthenticated, v1::Reason::Unauthenticated),
        ErrorCode::Forbidden => (Code::PermissionDenied, v1::Reason::Forbidden),
        ErrorCode::Internal => (Code::Internal, v1::Reason::Internal),
    }
}

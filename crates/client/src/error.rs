//! What can go wrong with a call, and what a caller can do about it.

use std::time::Duration;

use hawser_common::group::Owner;
use hawser_common::{Coded, ErrorCode};
use hawser_proto::Fault;
use hawser_proto::bearer::InvalidKey;
use hawser_proto::fault::Origin;
use thiserror::Error;

/// Why a call or a turn failed. [`Coded::code`] says what to do about it.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The text is not an address.
    #[error("{uri:?} is not a server address; write it as http://HOST:PORT")]
    Address { uri: String },
    /// The certificates do not fit, to each other or to the address.
    #[error("cannot connect to {uri} safely: {cause}")]
    Secured { uri: String, cause: String },
    /// The API key is no key.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// Nothing listens there, or it is no gRPC server.
    #[error(
        "no server answers at {uri}: {cause}; start one with `hawser up`, or give the address of another"
    )]
    Connect { uri: String, cause: String },
    /// The server refused before anything was delivered. The session is as it was.
    #[error("{0}")]
    Refused(Fault),
    /// The turn broke off. The session's history stays at the last turn that ended well.
    #[error("the turn broke off after {tokens} tokens: {}", .fault.message)]
    Interrupted { fault: Fault, tokens: u64 },
    /// The stream ended without its last frame: what was delivered is not the whole answer.
    #[error("the stream ended after {tokens} tokens without saying how; send the turn again")]
    Truncated { tokens: u64 },
    /// The server sent what the protocol does not allow.
    #[error("the server broke the protocol: {what}; client and server may be of different versions")]
    Protocol { what: &'static str },
    /// The caller's deadline passed.
    #[error("the call did not end within its deadline of {limit:.1?}")]
    Deadline { limit: Duration },
    /// The session lives on the server only, and the server has lost it.
    #[error(
        "session {session} is not held any more, and this client does not know its history; start a new one"
    )]
    HistoryUnknown { session: String },
}

impl Coded for ClientError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Address { .. } | Self::Secured { .. } | Self::Key(_) => ErrorCode::Invalid,
            Self::Connect { .. } | Self::Truncated { .. } => ErrorCode::Unavailable,
            Self::Refused(fault) | Self::Interrupted { fault, .. } => fault.code,
            Self::Protocol { .. } => ErrorCode::Internal,
            Self::Deadline { .. } => ErrorCode::Deadline,
            Self::HistoryUnknown { .. } => ErrorCode::SessionLost,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(fault) | Self::Interrupted { fault, .. } => fault.retry_after,
            _ => None,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Refused(fault) => fault.owner.as_ref(),
            _ => None,
        }
    }
}

impl ClientError {
    /// A status that came before anything was delivered.
    pub(crate) fn refused(status: &tonic::Status) -> Self {
        Self::Refused(hawser_proto::fault(status))
    }

    /// Whether the server is known to have done nothing.
    pub(crate) fn nothing_happened(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Secured { .. } | Self::Key(_) | Self::Connect { .. } => true,
            Self::Refused(fault) => match fault.origin {
                Origin::Answered | Origin::Connect => true,
                Origin::Transport => false,
            },
            _ => false,
        }
    }
}

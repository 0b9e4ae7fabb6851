//! The wire contract: generated code, conversions, and the only maker of [`tonic::Status`].
//!
//! Owns what crosses a process boundary. Everything that comes in is parsed here into the types of
//! `hawser_common`; nothing that leaves this crate inwards still has to be checked for its shape.

pub mod bearer;
pub mod convert;
pub mod deadline;
pub mod fault;
mod gathered;
pub mod link;
pub mod status;
pub mod trace;
pub mod transport;

pub use bearer::Bearer;
pub use convert::InvalidRequest;
pub use deadline::deadline;
pub use fault::{Fault, fault};
pub use gathered::{connect, connect_lazy};
pub use link::{Link, Reach};
pub use status::status;
pub use trace::{set_trace_parent, trace_parent};
pub use transport::{Dial, DialError, TlsError};

/// Generated from `proto/hawser/v1`.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::too_many_lines,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("hawser.v1");
}

/// Descriptors of every service, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("hawser");

/// Largest message that a Hawser server or client takes, in bytes: the largest legal content plus its framing.
pub const MAX_MESSAGE_BYTES: usize = 24 << 20;

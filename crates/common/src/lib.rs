//! Vocabulary shared by every crate: ids, units, error codes, clock, configuration, telemetry.
//!
//! Owns the words and nothing that acts: no gRPC, no etcd, no tensors.

pub mod cause;
pub mod chat;
pub mod clock;
pub mod config;
pub mod error;
pub mod group;
pub mod hint;
pub mod ids;
pub mod keepalive;
pub mod numbers;
pub mod request;
pub mod retention;
pub mod said;
pub mod sampling;
pub mod secret;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod units;

pub use error::{Coded, ErrorCode};
pub use ids::{Epoch, GroupId, SessionId, SessionKey, TenantId};
pub use keepalive::Keepalive;
pub use secret::Secret;
pub use units::{Position, SlotId};

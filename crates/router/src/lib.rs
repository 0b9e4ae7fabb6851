//! The session-affine entry point: admission, affinity, balance, relay.
//!
//! Owns no truth: the store says who owns a session, the workers hold the sessions. The router remembers what the
//! store told it, chooses a group where the store says nothing, and relays frames. It never reads tokens, holds no KV
//! state, and records nothing about a session before the store says so.
//!
//! Decisions are in pure modules that take time as an argument (`affinity`, `fleet`, `balance`, `attempts`,
//! `quota`); what waits and calls is in `place`, `relay` and `service`. Who calls is settled first, in `auth`.

pub(crate) mod admission;
pub(crate) mod affinity;
pub(crate) mod attempts;
pub(crate) mod auth;
pub(crate) mod balance;
pub(crate) mod continuation;
pub(crate) mod deadline;
mod error;
pub(crate) mod fleet;
pub(crate) mod follow;
mod front;
pub(crate) mod generations;
pub(crate) mod handle;
pub(crate) mod metrics;
mod options;
pub(crate) mod place;
pub(crate) mod prefix;
pub(crate) mod quota;
mod reachable;
pub(crate) mod relay;
mod roster;
mod router;
mod service;
mod store_service;
mod strategy;
pub(crate) mod upstream;
pub(crate) mod view;

pub use auth::AuthOptions;
pub use auth::keys::{ApiKey, InvalidKeys};
pub use error::RouteError;
pub use handle::{InvalidHandle, InvalidSecrets};
pub use metrics::METRICS;
pub use options::{InvalidOptions, RouterOptions};
pub use quota::Quota;
pub use router::{Network, Router, RouterHandle, StartError};
pub use store_service::StoreService;
pub use strategy::Strategy;
pub use upstream::link_limits;

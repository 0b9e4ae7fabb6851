//! The leader of a worker group: it tokenises, schedules, allocates, samples and streams.
//!
//! Owns the group's sessions, its scheduler and its driver thread. Promises that one thread owns the scheduler's
//! state, that a turn ends with exactly one terminal event, and that an aborted turn leaves its session as the last
//! committed turn left it. Never places sessions on other groups: that is the router's work.

pub mod driver;
mod lifecycle;
mod metrics;
pub mod moving;
mod options;
pub mod ranks;
mod remote_store;
pub mod scheduler;
mod server;
pub mod session;
pub mod simulated;
pub mod turn;

pub use lifecycle::{Exit, LoadError, LoadReport, StartError, Worker, WorkerHandle};
pub use lifecycle::{FollowerError, follow_leader, follow_leader_observed};
pub use metrics::{METRICS, MoveEnd, Moved, WorkerMetrics};
pub use moving::BalanceOptions;
pub use options::{CollectiveKind, EngineKind, InvalidOptions, KvType, WorkerOptions};
pub use remote_store::{InvalidStore, RemoteStore};
pub use simulated::SimulatedOptions;

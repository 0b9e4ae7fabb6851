//! Where traces and metrics of a process go: OTLP over gRPC to a collector, and a page that Prometheus reads.
//!
//! Owns exporters, their queues and the page's server. Promises that nothing that is measured waits for a collector:
//! what finds no room is dropped and said once. Never decides what is measured: the crates that do take a
//! [`hawser_common::telemetry::Telemetry`] and do not know this one.

mod metrics;
mod options;
mod page;
mod pipeline;
mod quiet;

pub use metrics::METRICS;
pub use options::{InvalidOptions, TelemetryOptions};
pub use pipeline::{Pipeline, StartError};

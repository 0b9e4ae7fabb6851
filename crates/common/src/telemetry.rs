//! What a process says of itself: log lines, metrics and traces.
//!
//! Owns the interface that the other crates speak to, and nothing that sends: no exporter, no socket, no global state.
//! A [`Telemetry`] is handed to whoever is to be watched; one that is off costs a call through a pointer for a metric
//! and a comparison for a span.

mod label;
mod log;
mod meter;
mod trace;

pub use label::{Label, Outcome};
pub use log::{LogFormat, TelemetryError, init};
pub use meter::{
    Counter, CounterBy, Gauge, GaugeBy, Histogram, Kind, LONG_S, Level, LevelGuard, Meter, Metric, SHORT_S,
};
pub use trace::{Span, SpanKind, TraceParent, Tracer};

/// Where measurements and spans of one process go.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    pub meter: Meter,
    pub tracer: Tracer,
}

impl Telemetry {
    /// Goes nowhere.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }
}

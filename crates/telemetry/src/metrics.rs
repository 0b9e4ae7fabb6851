//! What is measured of telemetry itself.

use hawser_common::label;
use hawser_common::telemetry::{Counter, CounterBy, Meter, Metric};

label! {
    /// What was to be exported.
    pub(crate) enum Signal: "signal" { Traces = "traces", Metrics = "metrics" }
}

const DROPPED: Metric = Metric::counter(
    "hawser.telemetry.spans_dropped",
    "{span}",
    "Spans that found the queue to the collector full.",
);
const FAILURES: Metric = Metric::counter(
    "hawser.telemetry.export_failures",
    "{export}",
    "Messages that the collector did not take; what was in them is lost.",
)
.by("signal");

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[DROPPED, FAILURES];

#[derive(Clone, Debug)]
pub(crate) struct ExportMetrics {
    pub(crate) dropped: Counter,
    pub(crate) failures: CounterBy<Signal>,
}

impl ExportMetrics {
    pub(crate) fn new(meter: &Meter) -> Self {
        Self { dropped: meter.counter(&DROPPED), failures: meter.counter_by(&FAILURES) }
    }
}

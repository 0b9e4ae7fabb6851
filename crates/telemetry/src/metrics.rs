//! What is measured of telemetry itself.

use hawser_common::telemetry::{Counter, CounterBy, Meter, Metric};
use hawser_common::{label, metrics};

label! {
    /// What was to be exported.
    pub(crate) enum Signal: "signal" { Traces = "traces", Metrics = "metrics" }
}

metrics! {
    DROPPED = Metric::counter(
        "hawser.telemetry.spans_dropped",
        "{span}",
        "Spans that found the queue to the collector full.",
    );
    FAILURES = Metric::counter(
        "hawser.telemetry.export_failures",
        "{export}",
        "Messages that the collector did not take; what was in them is lost.",
    )
    .by("signal");
}

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

//! Metrics: what there is is a list of [`Metric`]s, and instruments are made from an entry of it.
//!
//! Promises that every label is a closed set, that a counter shows all its values from the start, and that measuring
//! neither blocks nor fails. A gauge is shown for as long as somebody holds it: what is gone has no last value. What is
//! measured goes where the [`Meter`] leads.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{self as otel, MeterProvider as _, NoopMeterProvider};

use super::label::Label;

/// Bounds in seconds of what takes from a tenth of a millisecond to seconds.
pub const SHORT_S: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
/// Bounds in seconds of what takes from milliseconds to minutes.
pub const LONG_S: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// What is so now.
    Gauge,
    /// How often values fell between bounds.
    Histogram,
}

/// One metric, described once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Dotted, without unit.
    pub name: &'static str,
    /// As UCUM has it: `s`, or what is counted in braces.
    pub unit: &'static str,
    pub kind: Kind,
    /// Key of its label; empty where it has none of its own.
    pub label: &'static str,
    /// What it says, in one sentence.
    pub about: &'static str,
    bounds: &'static [f64],
}

impl Metric {
    #[must_use]
    pub const fn counter(name: &'static str, unit: &'static str, about: &'static str) -> Self {
        Self { name, unit, kind: Kind::Counter, label: "", about, bounds: &[] }
    }

    #[must_use]
    pub const fn gauge(name: &'static str, unit: &'static str, about: &'static str) -> Self {
        Self { name, unit, kind: Kind::Gauge, label: "", about, bounds: &[] }
    }

    #[must_use]
    pub const fn histogram(
        name: &'static str,
        unit: &'static str,
        bounds: &'static [f64],
        about: &'static str,
    ) -> Self {
        Self { name, unit, kind: Kind::Histogram, label: "", about, bounds }
    }

    /// With a label.
    #[must_use]
    pub const fn by(self, label: &'static str) -> Self {
        Self { label, ..self }
    }

    /// The name that Prometheus shows: the unit behind it, and what a counter's name ends with.
    #[must_use]
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        if self.unit == "s" {
            name.push_str("_seconds");
        }
        if self.kind == Kind::Counter {
            name.push_str("_total");
        }
        name
    }
}

/// Declares a crate's metrics: a constant for each, and `METRICS`, the list of them. None can be made and not listed.
#[macro_export]
macro_rules! metrics {
    ($($name:ident = $metric:expr;)+) => {
        $(const $name: $crate::telemetry::Metric = $metric;)+

        /// Every metric of this crate.
        pub const METRICS: &[$crate::telemetry::Metric] = &[$($name),+];
    };
}

/// Makes instruments. One that is off makes instruments that do nothing.
#[derive(Clone)]
pub struct Meter {
    meter: otel::Meter,
    /// On everything that is measured.
    base: Vec<KeyValue>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(NoopMeterProvider::new().meter("hawser"))
    }
}

impl Meter {
    #[must_use]
    pub fn new(meter: otel::Meter) -> Self {
        Self { meter, base: Vec::new() }
    }

    /// The same for one group of the process: groups are few and named in the configuration.
    #[must_use]
    pub fn of_group(&self, group: &crate::GroupId) -> Self {
        Self { meter: self.meter.clone(), base: vec![KeyValue::new("group", group.to_string())] }
    }

    fn labelled<L: Label>(&self, metric: &Metric) -> Vec<Vec<KeyValue>> {
        debug_assert_eq!(metric.label, L::KEY, "{} is counted by what its description says", metric.name);
        let with = |value: &L| {
            let own = KeyValue::new(L::KEY, value.name());
            self.base.iter().cloned().chain([own]).collect()
        };
        L::ALL.iter().map(with).collect()
    }

    /// Shown from the start, with nothing counted.
    #[must_use]
    pub fn counter(&self, metric: &Metric) -> Counter {
        let built = self.meter.u64_counter(metric.name).with_unit(metric.unit);
        let counter =
            Counter { counter: built.with_description(metric.about).build(), base: self.base.clone() };
        counter.add(0);
        counter
    }

    /// One counter for each value of a label, all shown from the start.
    #[must_use]
    pub fn counter_by<L: Label>(&self, metric: &Metric) -> CounterBy<L> {
        let built = self.meter.u64_counter(metric.name).with_unit(metric.unit);
        let counter = built.with_description(metric.about).build();
        let labels = self.labelled::<L>(metric);
        labels.iter().for_each(|labels| counter.add(0, labels));
        CounterBy { counter, labels, of: PhantomData }
    }

    /// Shown once it is set, until its last clone is dropped.
    #[must_use]
    pub fn gauge(&self, metric: &Metric) -> Gauge {
        self.held(metric, self.base.clone())
    }

    /// One gauge for each value of a label.
    #[must_use]
    pub fn gauge_by<L: Label>(&self, metric: &Metric) -> GaugeBy<L> {
        let gauges = self.labelled::<L>(metric).into_iter().map(|labels| self.held(metric, labels));
        GaugeBy { gauges: gauges.collect(), of: PhantomData }
    }

    fn held(&self, metric: &Metric, labels: Vec<KeyValue>) -> Gauge {
        let latest = Arc::new(AtomicU64::new(f64::NAN.to_bits()));
        let held = Arc::downgrade(&latest);
        self.observe_with(metric, labels, move || {
            let value = f64::from_bits(held.upgrade()?.load(Ordering::Relaxed));
            (!value.is_nan()).then_some(value)
        });
        Gauge { latest }
    }

    /// A gauge that is counted up and down.
    #[must_use]
    pub fn level(&self, metric: &Metric) -> Level {
        let built = self.meter.i64_up_down_counter(metric.name).with_unit(metric.unit);
        let level = Level { level: built.with_description(metric.about).build(), base: self.base.clone() };
        level.level.add(0, &level.base);
        level
    }

    #[must_use]
    pub fn histogram(&self, metric: &Metric) -> Histogram {
        let built = self.meter.f64_histogram(metric.name).with_unit(metric.unit);
        let built = built.with_description(metric.about).with_boundaries(metric.bounds.to_vec());
        Histogram { histogram: built.build(), base: self.base.clone() }
    }

    /// A gauge that is looked up whenever somebody wants to know. `look` is called for as long as the process lives:
    /// it holds nothing that has to end, and says `None` once there is nothing to say.
    pub fn observe(&self, metric: &Metric, look: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        self.observe_with(metric, self.base.clone(), look);
    }

    fn observe_with(
        &self,
        metric: &Metric,
        labels: Vec<KeyValue>,
        look: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let built = self.meter.f64_observable_gauge(metric.name).with_unit(metric.unit);
        let built = built.with_description(metric.about).with_callback(move |observer| {
            if let Some(value) = look() {
                observer.observe(value, &labels);
            }
        });
        // The callback stays with the meter; the handle is of no use.
        let _observed = built.build();
    }
}

/// Counts.
#[derive(Clone, Debug)]
pub struct Counter {
    counter: otel::Counter<u64>,
    base: Vec<KeyValue>,
}

impl Counter {
    pub fn add(&self, count: u64) {
        self.counter.add(count, &self.base);
    }
}

/// Counts by a label.
#[derive(Debug)]
pub struct CounterBy<L> {
    counter: otel::Counter<u64>,
    labels: Vec<Vec<KeyValue>>,
    of: PhantomData<fn(L)>,
}

impl<L> Clone for CounterBy<L> {
    fn clone(&self) -> Self {
        Self { counter: self.counter.clone(), labels: self.labels.clone(), of: PhantomData }
    }
}

impl<L: Label> CounterBy<L> {
    pub fn add(&self, of: L, count: u64) {
        self.counter.add(count, &self.labels[of.index()]);
    }
}

/// What is so now.
#[derive(Clone, Debug)]
pub struct Gauge {
    /// As bits; not a number: not set yet.
    latest: Arc<AtomicU64>,
}

impl Gauge {
    pub fn set(&self, value: impl Into<f64>) {
        self.latest.store(value.into().to_bits(), Ordering::Relaxed);
    }

    /// A count, as exact as a double is.
    pub fn set_count(&self, count: u64) {
        self.set(count as f64);
    }
}

/// What is so now, by a label.
#[derive(Debug)]
pub struct GaugeBy<L> {
    gauges: Vec<Gauge>,
    of: PhantomData<fn(L)>,
}

impl<L> Clone for GaugeBy<L> {
    fn clone(&self) -> Self {
        Self { gauges: self.gauges.clone(), of: PhantomData }
    }
}

impl<L: Label> GaugeBy<L> {
    pub fn set_count(&self, of: L, count: u64) {
        self.gauges[of.index()].set_count(count);
    }
}

/// How many of something there are, counted by their guards.
#[derive(Clone, Debug)]
pub struct Level {
    level: otel::UpDownCounter<i64>,
    base: Vec<KeyValue>,
}

impl Level {
    /// One more, until the guard is dropped.
    #[must_use]
    pub fn enter(&self) -> LevelGuard {
        self.level.add(1, &self.base);
        LevelGuard(self.clone())
    }
}

/// One that is counted.
#[derive(Debug)]
pub struct LevelGuard(Level);

impl Drop for LevelGuard {
    fn drop(&mut self) {
        self.0.level.add(-1, &self.0.base);
    }
}

/// How values are spread.
#[derive(Clone, Debug)]
pub struct Histogram {
    histogram: otel::Histogram<f64>,
    base: Vec<KeyValue>,
}

impl Histogram {
    /// A time, in seconds.
    pub fn time(&self, time: Duration) {
        self.histogram.record(time.as_secs_f64(), &self.base);
    }

    /// A count.
    pub fn count(&self, count: u64) {
        self.histogram.record(count as f64, &self.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus() {
        let counter = Metric::counter("hawser.router.turns", "{turn}", "…");
        assert_eq!(counter.prometheus_name(), "hawser_router_turns_total");
        let time = Metric::histogram("hawser.worker.queue_wait", "s", SHORT_S, "…");
        assert_eq!(time.prometheus_name(), "hawser_worker_queue_wait_seconds");
        assert_eq!(Metric::gauge("a.b", "", "…").prometheus_name(), "a_b");
        for bounds in [SHORT_S, LONG_S] {
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{bounds:?}");
        }
    }

    #[test]
    fn what_is_off_takes_everything_and_does_nothing() {
        let meter = Meter::default();
        let metric = Metric::counter("a", "", "…");
        meter.counter(&metric).add(3);
        meter.counter_by::<super::super::Outcome>(&metric.by("outcome")).add(super::super::Outcome::Ok, 1);
        drop(meter.level(&metric).enter());
        meter.observe(&metric, || -> Option<f64> { unreachable!("nobody asks") });
    }
}

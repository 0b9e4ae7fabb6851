//! The queue to the collector and its exporter: full means dropped, and trouble is said once and not per message.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tracing::{info, warn};

use crate::metrics::{ExportMetrics, Signal};

/// Spans that wait for the collector.
pub(crate) const QUEUE: usize = 4_096;

/// How exporting goes, shared by whoever takes part in it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    waiting: AtomicUsize,
    /// Set once it exists: metrics of exporting are exported themselves.
    metrics: OnceLock<ExportMetrics>,
    has_dropped: AtomicBool,
}

impl Health {
    pub(crate) fn measured_by(&self, metrics: ExportMetrics) {
        // There is one pipeline for each; a second call would change nothing.
        let _first = self.metrics.set(metrics);
    }
}

/// Lets no more than [`QUEUE`] spans wait.
#[derive(Debug)]
pub(crate) struct Bounded<P> {
    inner: P,
    health: Arc<Health>,
}

impl<P> Bounded<P> {
    pub(crate) fn new(inner: P, health: Arc<Health>) -> Self {
        Self { inner, health }
    }
}

impl<P: SpanProcessor> SpanProcessor for Bounded<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let health = &self.health;
        if health.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE {
            return self.inner.on_end(span);
        }
        health.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(metrics) = health.metrics.get() {
            metrics.dropped.add(1);
        }
        if !health.has_dropped.swap(true, Ordering::Relaxed) {
            warn!(
                queue = QUEUE,
                "the collector takes spans too slowly: those without room are dropped from now on"
            );
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// An exporter that says when it begins to fail and when it works again.
#[derive(Debug)]
pub(crate) struct Quiet<E> {
    inner: E,
    signal: Signal,
    health: Arc<Health>,
    is_failing: AtomicBool,
}

impl<E> Quiet<E> {
    pub(crate) fn new(inner: E, signal: Signal, health: Arc<Health>) -> Self {
        Self { inner, signal, health, is_failing: AtomicBool::new(false) }
    }

    fn say(&self, result: &OTelSdkResult) {
        use hawser_common::telemetry::Label as _;
        let signal = self.signal.name();
        if result.is_err()
            && let Some(metrics) = self.health.metrics.get()
        {
            metrics.failures.add(self.signal, 1);
        }
        match (result, self.is_failing.swap(result.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => {
                warn!(signal, %error, "the collector does not answer: what it should have got is lost until it does");
            }
            (Ok(()), true) => info!(signal, "the collector answers again"),
            (Ok(()), false) | (Err(_), true) => {}
        }
    }
}

impl<E: SpanExporter> SpanExporter for Quiet<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.health.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
        let result = self.inner.export(batch).await;
        self.say(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Quiet<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.inner.export(metrics).await;
        self.say(&result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    /// Takes spans and never gives them on.
    #[derive(Debug, Default)]
    struct Held(Arc<AtomicUsize>);

    impl SpanProcessor for Held {
        fn on_start(&self, _: &mut Span, _: &Context) {}
        fn on_end(&self, _: SpanData) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped() {
        let (taken, health) = (Arc::new(AtomicUsize::new(0)), Arc::new(Health::default()));
        let bounded = Bounded::new(Held(Arc::clone(&taken)), Arc::clone(&health));
        let provider = SdkTracerProvider::builder().with_span_processor(bounded).build();
        let tracer = provider.tracer("test");
        for _ in 0..QUEUE + 100 {
            drop(tracer.start("span"));
        }
        assert_eq!(taken.load(Ordering::Relaxed), QUEUE);
        assert!(health.has_dropped.load(Ordering::Relaxed));
        health.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(tracer.start("span"));
        assert_eq!(taken.load(Ordering::Relaxed), QUEUE + 1, "there is room again");
    }
}

//! The pipeline from instruments to collectors: made when a process starts, emptied when it ends.
//!
//! One set of instruments feeds both ways out, so that Prometheus and a collector are told the same numbers. Nothing
//! runs where nothing is configured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hawser_common::tasks::Tasks;
use hawser_common::telemetry::{Meter, Telemetry, Tracer};
use hawser_common::{Coded, ErrorCode};
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider};
use thiserror::Error;
use tracing::info;

use crate::metrics::{ExportMetrics, Signal};
use crate::options::{InvalidOptions, TelemetryOptions};
use crate::page;
use crate::quiet::{Bounded, Health, QUEUE, Quiet};

/// Longest that one message to the collector may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(3);
/// Longest that a span waits for others to travel with.
const SPAN_DELAY: Duration = Duration::from_millis(500);
/// Spans of one message.
const BATCH: usize = 512;
const SCOPE: &str = "hawser";

/// Why telemetry did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("telemetry.{0}")]
    Options(#[from] InvalidOptions),
    #[error("cannot export to {endpoint}: {source}")]
    Exporter { endpoint: String, source: ExporterBuildError },
    #[error("cannot show metrics to Prometheus: {0}")]
    Prometheus(#[from] OTelSdkError),
    #[error("cannot listen on {address} for Prometheus: {source}; choose another telemetry.metrics_listen")]
    Listen { address: SocketAddr, source: std::io::Error },
}

impl Coded for StartError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Options(_) | Self::Exporter { .. } => ErrorCode::Invalid,
            Self::Prometheus(_) => ErrorCode::Internal,
            Self::Listen { .. } => ErrorCode::Unavailable,
        }
    }
}

/// Running exporters. Call [`Pipeline::shutdown`]: what waits is lost otherwise.
#[derive(Debug)]
pub struct Pipeline {
    telemetry: Telemetry,
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    metrics_addr: Option<SocketAddr>,
    tasks: Tasks,
}

impl Pipeline {
    /// Starts what is configured. `role` says what kind of process this is. Connects to no collector yet.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub async fn start(options: &TelemetryOptions, role: &'static str) -> Result<Self, StartError> {
        options.validate()?;
        let (health, resource) = (Arc::new(Health::default()), resource(options, role));
        let tasks = Tasks::new();
        let mut metrics_addr = None;
        let mut metrics = SdkMeterProvider::builder().with_resource(resource.clone());
        if let Some(listen) = options.metrics_listen {
            let registry = prometheus::Registry::new();
            let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
            metrics = metrics.with_reader(exporter.scope_info_enabled(false).build()?);
            let served = page::serve(listen, registry, &tasks).await;
            let address = served.map_err(|source| StartError::Listen { address: listen, source })?;
            info!(%address, "metrics for Prometheus");
            metrics_addr = Some(address);
        }
        let traces = match &options.otlp_endpoint {
            Some(endpoint) => {
                let exported = |source| StartError::Exporter { endpoint: endpoint.clone(), source };
                let exporter = metric_exporter(endpoint).map_err(exported)?;
                let quiet = Quiet::new(exporter, Signal::Metrics, Arc::clone(&health));
                let interval = Duration::from_millis(options.export_interval_ms);
                metrics = metrics.with_reader(PeriodicReader::builder(quiet).with_interval(interval).build());
                let exporter = span_exporter(endpoint).map_err(exported)?;
                Some(tracer_provider(exporter, options.sample_ratio, resource, &health))
            }
            None => None,
        };
        let is_measured = options.metrics_listen.is_some() || traces.is_some();
        let metrics = is_measured.then(|| metrics.build());
        let telemetry = Telemetry {
            meter: metrics.as_ref().map(|metrics| Meter::new(metrics.meter(SCOPE))).unwrap_or_default(),
            tracer: traces.as_ref().map(boxed).unwrap_or_default(),
        };
        health.measured_by(ExportMetrics::new(&telemetry.meter));
        Ok(Self { telemetry, traces, metrics, metrics_addr, tasks })
    }

    /// For whoever is to be watched.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Where the page for Prometheus is.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Sends what waits and ends. `false` if that was not done within `limit`: the rest is lost.
    pub async fn shutdown(self, limit: Duration) -> bool {
        let Self { traces, metrics, tasks, telemetry, .. } = self;
        drop(telemetry);
        // Both wait for threads of their own.
        let flush = tokio::task::spawn_blocking(move || {
            let traces = traces.map_or(Ok(()), |traces| traces.shutdown_with_timeout(limit));
            let metrics = metrics.map_or(Ok(()), |metrics| metrics.shutdown_with_timeout(limit));
            traces.is_ok() && metrics.is_ok()
        });
        let flushed = matches!(tokio::time::timeout(limit, flush).await, Ok(Ok(true)));
        tasks.shutdown(limit).await && flushed
    }
}

fn boxed(provider: &SdkTracerProvider) -> Tracer {
    Tracer::new(BoxedTracer::new(Box::new(provider.tracer(SCOPE))))
}

fn resource(options: &TelemetryOptions, role: &'static str) -> Resource {
    let drawn = || format!("{:016x}", rand::random::<u64>());
    let instance = if options.instance_id.is_empty() { drawn() } else { options.instance_id.clone() };
    Resource::builder()
        .with_service_name(options.service_name.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
            KeyValue::new("hawser.role", role),
        ])
        .build()
}

fn metric_exporter(endpoint: &str) -> Result<MetricExporter, ExporterBuildError> {
    MetricExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_LIMIT).build()
}

fn span_exporter(endpoint: &str) -> Result<SpanExporter, ExporterBuildError> {
    SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_LIMIT).build()
}

fn tracer_provider(
    exporter: SpanExporter,
    ratio: f64,
    resource: Resource,
    health: &Arc<Health>,
) -> SdkTracerProvider {
    let config = BatchConfigBuilder::default()
        // Never full: the bound is kept in front of it.
        .with_max_queue_size(2 * QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(SPAN_DELAY)
        .build();
    let quiet = Quiet::new(exporter, Signal::Traces, Arc::clone(health));
    let batches = BatchSpanProcessor::builder(quiet).with_batch_config(config).build();
    SdkTracerProvider::builder()
        .with_span_processor(Bounded::new(batches, Arc::clone(health)))
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
        .with_resource(resource)
        .build()
}

#[cfg(test)]
mod tests {
    use hawser_common::GroupId;
    use hawser_common::telemetry::Metric;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const SLOTS: Metric = Metric::gauge("hawser.test.slots", "{slot}", "Of this test.");

    async fn shown(page: SocketAddr) -> Vec<String> {
        let mut stream = tokio::net::TcpStream::connect(page).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.lines().filter(|line| line.starts_with("hawser_test_slots")).map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn a_group_that_has_ended_leaves_no_last_numbers() {
        let listen = Some(([127, 0, 0, 1], 0).into());
        let options = TelemetryOptions { metrics_listen: listen, ..TelemetryOptions::default() };
        let pipeline = Pipeline::start(&options, "test").await.unwrap();
        let page = pipeline.metrics_addr().unwrap();
        let of = |group: &str| {
            let meter = pipeline.telemetry().meter.of_group(&GroupId::parse(group).unwrap());
            meter.gauge(&SLOTS)
        };
        let (stays, goes, unset) = (of("stays"), of("goes"), of("unset"));
        stays.set_count(7);
        goes.set_count(8);
        let copy = goes.clone();
        drop(goes);
        let lines = shown(page).await;
        assert_eq!(lines.len(), 2, "{lines:?}");
        drop((copy, unset));
        let lines = shown(page).await;
        assert!(lines.len() == 1 && lines[0].contains("stays") && lines[0].ends_with(" 7"), "{lines:?}");
        // It comes back with numbers of its own.
        let back = of("goes");
        back.set_count(9);
        stays.set_count(6);
        let lines = shown(page).await;
        assert!(lines.len() == 2 && lines.iter().any(|line| line.ends_with(" 9")), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with(" 6")), "{lines:?}");
    }
}

//! A collector of traces and metrics in this process, as OpenTelemetry's is seen over gRPC.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// What a test asks of a span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty where it is the first of its trace.
    pub(crate) parent: String,
    /// Nanoseconds since the Unix epoch.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) failed: bool,
    attributes: Vec<(String, String)>,
    /// Of the process.
    pub(crate) service: String,
}

impl Seen {
    pub(crate) fn attribute(&self, key: &str) -> &str {
        let found = self.attributes.iter().find(|(known, _)| known == key);
        &found.unwrap_or_else(|| panic!("{} has no {key}: {:?}", self.name, self.attributes)).1
    }
}

#[derive(Default)]
struct Taken {
    spans: Vec<Seen>,
    metrics: BTreeSet<String>,
}

/// Clones stand for the same one.
#[derive(Clone, Default)]
struct Services(Arc<Mutex<Taken>>);

pub(crate) struct Collector {
    pub(crate) uri: String,
    taken: Services,
    serving: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    #[allow(clippy::disallowed_methods, reason = "it ends with the test")]
    pub(crate) fn start() -> Self {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let uri = format!("http://{}", incoming.local_addr().unwrap());
        let taken = Services::default();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(taken.clone()))
            .add_service(MetricsServiceServer::new(taken.clone()));
        let serving = tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
        Self { uri, taken, serving }
    }

    pub(crate) fn spans(&self) -> Vec<Seen> {
        self.taken.0.lock().unwrap_or_else(PoisonError::into_inner).spans.clone()
    }

    /// Names of the metrics that came.
    pub(crate) fn metrics(&self) -> BTreeSet<String> {
        self.taken.0.lock().unwrap_or_else(PoisonError::into_inner).metrics.clone()
    }
}

#[tonic::async_trait]
impl TraceService for Services {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for resource in request.into_inner().resource_spans {
            let of_process = resource.resource.map(|resource| texts(resource.attributes)).unwrap_or_default();
            let service = of_process.iter().find(|(key, _)| key == "service.name").unwrap().1.clone();
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                taken.spans.push(Seen {
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    from: span.start_time_unix_nano,
                    to: span.end_time_unix_nano,
                    failed: span.status.is_some_and(|status| status.code == 2),
                    attributes: texts(span.attributes),
                    service: service.clone(),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Services {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scopes =
            request.into_inner().resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        taken.metrics.extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: Vec<KeyValue>) -> Vec<(String, String)> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.into_iter().map(|attribute| (attribute.key, text(attribute.value))).collect()
}

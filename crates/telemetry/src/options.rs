//! Configuration of what a process says of itself.

use std::net::SocketAddr;

use axum::http::Uri;
use hawser_common::telemetry::LogFormat;
use hawser_common::{Coded, ErrorCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What is told, and to whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryOptions {
    /// Collector that traces and metrics are sent to, OTLP over gRPC; absent: none.
    pub otlp_endpoint: Option<String>,
    /// Share of traces that are recorded. One that was begun elsewhere is recorded where its beginner does.
    pub sample_ratio: f64,
    /// Milliseconds between two messages of metrics to the collector.
    pub export_interval_ms: u64,
    /// Where the page `/metrics` is served for Prometheus; absent: nowhere. Port 0 takes a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// `service.name` of this process.
    pub service_name: String,
    /// `service.instance.id` of this process; empty: drawn when it starts.
    pub instance_id: String,
    /// Log lines as text or as JSON.
    pub log_format: LogFormat,
}

impl Default for TelemetryOptions {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            sample_ratio: 1.0,
            export_interval_ms: 10_000,
            metrics_listen: None,
            service_name: "hawser".to_owned(),
            instance_id: String::new(),
            log_format: LogFormat::Text,
        }
    }
}

/// An option out of its bounds.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InvalidOptions {
    #[error("otlp_endpoint is {found:?}; expected is http://host:port, such as http://127.0.0.1:4317")]
    Endpoint { found: String },
    #[error("sample_ratio is {found}; allowed is 0 to 1")]
    Ratio { found: f64 },
    #[error("export_interval_ms is {found}; allowed is 100 to 3600000")]
    Interval { found: u64 },
    #[error("service_name is empty; name the service, such as hawser")]
    NoName,
}

impl Coded for InvalidOptions {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl TelemetryOptions {
    /// # Errors
    /// [`InvalidOptions`] names the first option out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        if let Some(endpoint) = &self.otlp_endpoint
            && !is_endpoint(endpoint)
        {
            return Err(InvalidOptions::Endpoint { found: endpoint.clone() });
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(InvalidOptions::Ratio { found: self.sample_ratio });
        }
        if !(100..=3_600_000).contains(&self.export_interval_ms) {
            return Err(InvalidOptions::Interval { found: self.export_interval_ms });
        }
        if self.service_name.is_empty() { Err(InvalidOptions::NoName) } else { Ok(()) }
    }
}

/// Collectors stand beside the process, or are reached through one that does: without TLS.
fn is_endpoint(text: &str) -> bool {
    text.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(adjust: impl Fn(&mut TelemetryOptions), expected: Result<(), &str>) {
        let mut options = TelemetryOptions::default();
        adjust(&mut options);
        let found = options.validate().map_err(|error| error.to_string());
        match expected {
            Ok(()) => assert_eq!(found, Ok(())),
            Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{found:?}"),
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        check(|_| {}, Ok(()));
        check(|options| options.otlp_endpoint = Some("http://collector:4317".into()), Ok(()));
        for wrong in ["", "collector:4317", "https://collector:4317", "http://", "grpc://a:1"] {
            check(|options| options.otlp_endpoint = Some(wrong.into()), Err("otlp_endpoint"));
        }
        for wrong in [-0.1, 1.1, f64::NAN] {
            check(|options| options.sample_ratio = wrong, Err("sample_ratio"));
        }
        check(|options| options.export_interval_ms = 99, Err("export_interval_ms"));
        check(|options| options.service_name.clear(), Err("service_name"));
    }
}

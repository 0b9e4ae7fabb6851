//! Logging set-up. Lines go to standard error, so that standard output stays the product's.
//!
//! ERROR is for what a person must look at; what passes by itself is WARN. A line about a turn stands in that turn's
//! span, which names session, group and, where it is traced, the trace.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;
    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::Format { found: other.to_owned() }),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error("log format {found:?} is unknown; use text or json")]
    Format { found: String },
    #[error("log filter {filter:?} is wrong: {source}")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("logging was set up already")]
    Twice,
}

/// What exporters say of themselves: Hawser says it once, and they for every message. A filter may ask for it.
const SILENT: &str = "opentelemetry=off";

/// Starts logging for this process. `filter` is in the syntax of `tracing`, such as `info,hawser_router=debug`.
///
/// # Errors
/// [`TelemetryError`] for a filter that does not parse, or a second call.
pub fn init(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let parsed = EnvFilter::try_new(format!("{SILENT},{filter}"))
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let done = match format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    done.map_err(|_| TelemetryError::Twice)
}

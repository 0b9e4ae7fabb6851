//! Logging set-up. Lines go to standard error, so that standard output stays the product's.
//!
//! ERROR is for what a person must look at; what passes by itself is WARN. A line about a turn stands in that turn's
//! span, which names session, group and, where it is traced, the trace.

use std::io::IsTerminal;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

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

/// Starts logging for this process. `filter` is in the syntax of `tracing`, such as `info,hawser_router=debug`. Lines
/// have colours where people read them: on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// [`TelemetryError`] for a filter that does not parse, or a second call.
pub fn init(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let lines = lines(filter, format, std::io::stderr().is_terminal(), std::io::stderr)?;
    lines.try_init().map_err(|_| TelemetryError::Twice)
}

fn lines<W>(
    filter: &str,
    format: LogFormat,
    terminal: bool,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let parsed = EnvFilter::try_new(format!("{SILENT},{filter}"))
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(writer);
    // Its default is colours unless NO_COLOR is set, wherever lines go.
    let lines = if terminal { lines } else { lines.with_ansi(false) };
    Ok(match format {
        LogFormat::Text => Box::new(lines.with_target(false).finish()),
        LogFormat::Json => Box::new(lines.json().finish()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(format: LogFormat, terminal: bool) -> String {
        let page = Page::default();
        let writer = page.clone();
        let lines = lines("info", format, terminal, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(lines, || {
            let _inside = tracing::info_span!("turn", session = "s").entered();
            tracing::warn!(group = "a", took_ms = 1.5, "said");
        });
        String::from_utf8(page.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_file_gets_no_colours() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = shown(format, false);
            assert!(text.contains("said") && !text.contains('\u{1b}'), "{text:?}");
        }
        let text = shown(LogFormat::Text, false);
        assert!(text.contains("took_ms=1.5") && text.contains("session=\"s\""), "{text:?}");
        if std::env::var_os("NO_COLOR").is_none() {
            assert!(shown(LogFormat::Text, true).contains('\u{1b}'));
        }
    }
}

//! What the serving commands share: signals, thread counts, and how a started part is announced.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use hawser_common::tls::ServerTls;
use hawser_common::{Coded, ErrorCode, telemetry};
use hawser_telemetry::Pipeline;
use hawser_worker::{EngineKind, Exit, WorkerOptions};
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Global;
use crate::config::Config;
use crate::console::{bytes, counted, line};
use crate::models;

/// Ctrl-C and SIGTERM, from the moment that the value is there: one that comes while nobody waits is not lost.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
        })
    }

    /// Waits for one that was not waited for before. Cancel-safe: one that comes then stays for the next call.
    pub async fn next(&mut self) {
        // Cancel-safe: both only wait.
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Longest that traces and metrics which wait are sent for at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Starts log lines, from `level` on where nothing else is said, and what else the process says of itself.
pub async fn observe(
    global: &Global,
    config: &Config,
    role: &'static str,
    level: &str,
) -> anyhow::Result<Pipeline> {
    let filter = global.log.as_deref().unwrap_or(level);
    telemetry::init(filter, global.log_format.unwrap_or(config.telemetry.log_format))?;
    let pipeline = Pipeline::start(&config.telemetry, role).await?;
    if let Some(address) = pipeline.metrics_addr() {
        line(format!("metrics at http://{address}/metrics"));
    }
    if let Some(endpoint) = &config.telemetry.otlp_endpoint {
        line(format!("traces and metrics go to {endpoint}"));
    }
    Ok(pipeline)
}

/// Sends what waits, however serving ended.
pub async fn flush<T>(pipeline: Pipeline, served: anyhow::Result<T>) -> anyhow::Result<T> {
    if !pipeline.shutdown(FLUSH_LIMIT).await {
        tracing::warn!("not all traces and metrics were sent");
    }
    served
}

/// Runs `start`, or gives up when a stop signal comes first.
pub async fn unless_stopped<T>(
    stops: &mut StopSignals,
    start: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    // Cancel-safe: dropping a start leaves nothing behind but memory that the process gives back.
    tokio::select! {
        started = start => started.map(Some),
        () = stops.next() => Ok(None),
    }
}

/// How the URI of a server with these certificates begins.
pub fn scheme(tls: &ServerTls) -> &'static str {
    if tls.is_on() { "https" } else { "http" }
}

pub fn announce_loading(worker: &WorkerOptions, groups: usize) {
    let into = if groups == 1 { String::new() } else { format!(" into {}", counted(groups as u64, "group")) };
    if worker.engine == EngineKind::Simulated {
        return line(format!("simulating a model{into}: answers are made up"));
    }
    let model = &worker.model;
    line(format!("loading {} ({}){into} …", model.display(), bytes(models::size(model))));
}

pub fn announce_stop(grace: Duration) {
    line(format!(
        "stopping: running turns have {} to finish (again to stop at once)",
        crate::console::time(grace)
    ));
}

/// Longest that groups which are told to stop at once wait for the store to let go of their sessions.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// A second stop signal cut the grace period short.
#[derive(Debug, Error)]
#[error("stopped at once by a second signal: what still ran was cut off{}", .left.note())]
pub struct CutShort {
    left: Left,
}

impl Coded for CutShort {
    fn code(&self) -> ErrorCode {
        ErrorCode::Cancelled
    }
}

/// What became of the groups of a process that was cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It has none.
    NoGroups,
    Cluster,
    /// The store did not answer in time.
    Lease,
}

impl Left {
    fn note(self) -> &'static str {
        match self {
            Self::NoGroups => "",
            Self::Cluster => "; the lease was given back, so that sessions go on elsewhere",
            Self::Lease => "; the lease was not given back in time: sessions wait until it ends",
        }
    }
}

/// Takes groups out of the cluster at once.
pub async fn cut_short(groups: &[Exit]) -> CutShort {
    let left = join_all(groups.iter().map(|group| group.leave(EXIT_LIMIT))).await;
    CutShort {
        left: match left.iter().all(|left| *left) {
            _ if left.is_empty() => Left::NoGroups,
            true => Left::Cluster,
            false => Left::Lease,
        },
    }
}

/// Cores of this machine, shared by `groups` that run in one process.
pub fn threads_each(groups: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / groups).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_comes_between_two_waits_is_not_lost() {
        let mut stops = StopSignals::listen().unwrap();
        let started = unless_stopped(&mut stops, async { Ok(7) }).await.unwrap();
        assert_eq!(started, Some(7));
        let own = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &own]).status().unwrap().success());
        let heard = tokio::time::timeout(Duration::from_secs(10), stops.next()).await;
        assert!(heard.is_ok(), "the process would go on after SIGTERM");
    }
}

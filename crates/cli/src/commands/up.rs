//! `hawser up`: a router and worker groups in one process, over the embedded placement store unless it is told otherwise.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::{join_all, try_join_all};
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_placement::EmbeddedOptions;
use hawser_router::{Router, RouterHandle};
use hawser_worker::{Worker, WorkerHandle, WorkerOptions};

use super::placing::{self, Placement};
use super::serving::{
    StopSignals, announce_loading, announce_stop, cut_short, flush, observe, scheme, threads_each,
    unless_stopped,
};
use super::worker::announce_ready;
use crate::args::Global;
use crate::config::{Config, Overrides};
use crate::console::{bold, counted, dim, line, time};
use crate::models;

const EXAMPLES: &str = "\
Examples:
  hawser up                                            the demo model, one group
  hawser up --groups 2 --threads 1
  hawser up --model models/Qwen2.5-0.5B-Instruct --listen 0.0.0.0:7070
  hawser up --set worker.kv_memory_mib=4096            any key of docs/config.md

Then, from another terminal: hawser chat, hawser status.
Ctrl-C or SIGTERM lets running turns finish, then ends.";

/// Run everything on this machine: a router, worker groups and the placement store in one process.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A .gguf file, a checkpoint directory, or a name in the folder of models [default: smollm2-135m]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// What computes: `model`, or `simulated` for tests without a checkpoint [default: model]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Tokens that each group's KV pool holds, instead of memory
    #[arg(long, value_name = "TOKENS", conflicts_with = "kv_memory_mib")]
    slots: Option<usize>,
    /// Worker groups; each has its own KV pool and sessions [default: 1]
    #[arg(long, value_name = "N")]
    groups: Option<usize>,
    /// Where the router listens [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// CPU threads of each group [default: the cores, divided by the groups]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory of each group's KV pool in MiB [default: 1024]
    #[arg(long, value_name = "MIB")]
    kv_memory_mib: Option<usize>,
    /// Ranks of each group, each a thread with its share of the weights [default: 1]
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let mut flags = Overrides::default();
    flags.set("worker.model", options.model.as_ref().map(|path| path.display().to_string()));
    flags.set("groups", options.groups);
    flags.set("router.listen", options.listen.map(|address| address.to_string()));
    flags.set("worker.threads", options.threads);
    flags.set("worker.kv_memory_mib", options.kv_memory_mib);
    flags.set("worker.engine", options.engine.clone());
    flags.set("worker.kv_slots", options.slots);
    flags.set("worker.tp", options.tp);
    let mut config = Config::load(global, flags)?;
    config.validate()?;
    config.worker.model = models::of_worker(&config.worker, &global.model_dir)?;
    if config.worker.threads == 0 {
        config.worker.threads = threads_each(config.groups);
    }
    config.print();
    if config.groups > 1 && config.worker.listen.port() != 0 {
        bail!(
            "worker.listen names one port for {}; set its port to 0",
            counted(config.groups as u64, "group")
        );
    }
    let pipeline = observe(global, &config, "up", "warn").await?;
    let served = serve(&config, pipeline.telemetry()).await;
    flush(pipeline, served).await
}

async fn serve(config: &Config, telemetry: &Telemetry) -> anyhow::Result<()> {
    let clock = Clock::system();
    let began = clock.now();
    let mut stops = StopSignals::listen()?;
    let Some(parts) = unless_stopped(&mut stops, Box::pin(start(config, &clock, telemetry))).await? else {
        return Ok(());
    };
    let uri = format!("{}://{}", scheme(&config.router.tls), parts.router.addr());
    line(format!(
        "{} on {uri} {}",
        bold("router listens"),
        dim(format!("(ready in {})", time(clock.now().since(began))))
    ));
    try_next(&uri);
    stops.next().await;
    stop(parts, Duration::from_secs(config.grace_s), &mut stops).await
}

/// Everything that runs.
struct Parts {
    router: RouterHandle,
    groups: Vec<WorkerHandle>,
    store: Tasks,
}

async fn start(config: &Config, clock: &Clock, telemetry: &Telemetry) -> anyhow::Result<Parts> {
    let tasks = Tasks::new();
    let Placement { store, embedded } =
        placing::of_router(config, clock, &tasks, EmbeddedOptions::default())?;
    // The router first: its port is what another process may have taken.
    let router =
        Router::start_observed(&config.router, Arc::clone(&store), embedded, clock.clone(), telemetry)
            .context("cannot start the router")?;
    announce_loading(&config.worker, config.groups);
    let names = (0..config.groups).map(|index| group_name(config, index));
    let starts = names.map(|group| {
        let options = WorkerOptions { group, ..config.worker.clone() };
        Worker::start_observed(options, Arc::clone(&store), clock.clone(), telemetry)
    });
    let groups = try_join_all(starts).await.context("cannot start a worker group")?;
    groups.iter().for_each(announce_ready);
    Ok(Parts { router, groups, store: tasks })
}

/// `group-0`, `group-1`, … or the configured name, numbered where there are several.
fn group_name(config: &Config, index: usize) -> String {
    let configured = &config.worker.group;
    if *configured == WorkerOptions::default().group {
        format!("group-{index}")
    } else if config.groups == 1 {
        configured.clone()
    } else {
        format!("{configured}-{index}")
    }
}

fn try_next(uri: &str) {
    let server = if uri == Config::default().server { String::new() } else { format!(" --server {uri}") };
    line(format!("\nTry next, from another terminal:\n  hawser chat{server}\n  hawser status{server}\n"));
    line(dim("Ctrl-C stops."));
}

/// No new turns, running ones finish, then the end. A second signal ends at once.
async fn stop(parts: Parts, grace: Duration, stops: &mut StopSignals) -> anyhow::Result<()> {
    let Parts { router, groups, store } = parts;
    announce_stop(grace);
    let exits: Vec<_> = groups.iter().map(WorkerHandle::exit).collect();
    let all = async {
        join_all(groups.into_iter().map(|group| group.shutdown(grace))).await;
        router.shutdown(grace).await;
        store.shutdown(grace).await;
    };
    // Cancel-safe: the process ends either way.
    tokio::select! {
        () = all => line("stopped"),
        () = stops.next() => return Err(cut_short(&exits).await.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_different_names() {
        let mut config = Config { groups: 2, ..Config::default() };
        assert_eq!([group_name(&config, 0), group_name(&config, 1)], ["group-0", "group-1"]);
        config.worker.group = "eu".into();
        assert_eq!([group_name(&config, 0), group_name(&config, 1)], ["eu-0", "eu-1"]);
        config.groups = 1;
        assert_eq!(group_name(&config, 0), "eu");
    }
}

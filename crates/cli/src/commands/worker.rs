//! `hawser worker`: one worker group as a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use hawser_client::Client;
use hawser_common::clock::Clock;
use hawser_common::telemetry::Telemetry;
use hawser_worker::{Worker, WorkerHandle, WorkerOptions, follow_leader_observed};

use super::placing;
use super::serving::{
    StopSignals, announce_loading, announce_stop, cut_short, flush, observe, scheme, unless_stopped,
};
use crate::args::Global;
use crate::config::{Config, Overrides};
use crate::console::{bytes, count, counted, line, time};
use crate::models;

const EXAMPLES: &str = "\
Examples:
  hawser worker --group a --router http://127.0.0.1:7070
  hawser worker --group b --model models/Qwen2.5-0.5B-Instruct --threads 8
  hawser worker --group d --tp 2
  hawser worker --group f --etcd http://etcd-0:2379,http://etcd-1:2379
  hawser worker --group e --world 2 --rank 0 --rendezvous host-e:7100     (and --rank 1 elsewhere)
  hawser worker --group c --listen 0.0.0.0:7071 --set worker.advertise=http://host-c:7071

Ctrl-C or SIGTERM hands the group's sessions over: running turns finish, later ones run at another group.";

const JOIN_POLL: Duration = Duration::from_millis(20);
/// A router that has not heard of the group by then has trouble of its own; the group serves all the same.
const JOIN_LIMIT: Duration = Duration::from_secs(10);

/// Run one worker group and join a router.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A .gguf file, a checkpoint directory, or a name in the folder of models [default: smollm2-135m]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// What computes: `model`, or `simulated` for tests without a checkpoint [default: model]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Tokens that the KV pool holds, instead of memory
    #[arg(long, value_name = "TOKENS", conflicts_with = "kv_memory_mib")]
    slots: Option<usize>,
    /// URI of the router to join [default: http://127.0.0.1:7070]
    #[arg(long, visible_alias = "server", value_name = "URI")]
    router: Option<String>,
    /// Members of the etcd that keeps the cluster's placement, where no router does
    #[arg(long, value_name = "URI", value_delimiter = ',', conflicts_with = "router")]
    etcd: Vec<String>,
    /// Name of the group; no other one in the cluster may have it [default: group-0]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Where the leader listens; port 0 takes a free one [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Ranks of the group in this process, each a thread with its share of the weights [default: 1]
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// This process's rank in a group of processes; rank 0 leads [default: 0]
    #[arg(long, value_name = "R", requires = "world")]
    rank: Option<usize>,
    /// Ranks of a group of processes [default: 1]
    #[arg(long, value_name = "N", requires = "rendezvous")]
    world: Option<usize>,
    /// Where the ranks of a group of processes meet: the leader listens there
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory of the KV pool in MiB [default: 1024]
    #[arg(long, value_name = "MIB")]
    kv_memory_mib: Option<usize>,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let mut flags = Overrides::default();
    flags.set("worker.model", options.model.as_ref().map(|path| path.display().to_string()));
    flags.set("server", options.router.clone());
    flags.set_etcd(&options.etcd);
    flags.set("worker.group", options.group.clone());
    flags.set("worker.listen", options.listen.map(|address| address.to_string()));
    flags.set("worker.threads", options.threads);
    flags.set("worker.kv_memory_mib", options.kv_memory_mib);
    flags.set("worker.engine", options.engine.clone());
    flags.set("worker.kv_slots", options.slots);
    flags.set("worker.tp", options.tp);
    flags.set("worker.rank", options.rank);
    flags.set("worker.world", options.world);
    flags.set("worker.rendezvous", options.rendezvous.clone());
    let mut config = Config::load(global, flags)?;
    config.validate()?;
    config.worker.model = models::of_worker(&config.worker, &global.model_dir)?;
    config.worker.join_wait = config.join_wait_s.map(Duration::from_secs);
    config.print();
    let pipeline = observe(global, &config, "worker", "info").await?;
    let served = serve(config, pipeline.telemetry()).await;
    flush(pipeline, served).await
}

async fn serve(config: Config, telemetry: &Telemetry) -> anyhow::Result<()> {
    if config.worker.rank > 0 {
        return follow(config.worker, telemetry.clone()).await;
    }
    let mut stops = StopSignals::listen()?;
    let Some((group, router)) = unless_stopped(&mut stops, Box::pin(start(&config, telemetry))).await? else {
        return Ok(());
    };
    announce_ready(&group);
    let served = async {
        whole(&config, &group).await;
        joined(&config, router.as_ref(), &group).await
    };
    if let Some(joined) = unless_stopped(&mut stops, served).await? {
        let (name, scheme, address) = (group.group(), scheme(&config.worker.tls), group.addr());
        line(format!("group {name} serves at {scheme}://{address} and {joined}"));
        stops.next().await;
    }
    let grace = Duration::from_secs(config.grace_s);
    announce_stop(grace);
    let exit = group.exit();
    // Cancel-safe: the process ends either way.
    tokio::select! {
        _ = group.shutdown(grace) => line("stopped"),
        () = stops.next() => return Err(cut_short(&[exit]).await.into()),
    }
    Ok(())
}

/// A rank that does not lead: until its leader ends the group, or a signal comes.
async fn follow(worker: WorkerOptions, telemetry: Telemetry) -> anyhow::Result<()> {
    line(format!("rank {} of {}; the leader is at {}", worker.rank, worker.world, worker.rendezvous));
    let following = tokio::task::spawn_blocking(move || follow_leader_observed(&worker, &telemetry));
    let mut stops = StopSignals::listen()?;
    if let Some(ended) = unless_stopped(&mut stops, async { anyhow::Ok(following.await?) }).await? {
        ended?;
    }
    line("stopped");
    Ok(())
}

/// Waits until the group is registered, and says which ranks it waits for.
async fn whole(config: &Config, group: &WorkerHandle) {
    let mut told = Vec::new();
    while !group.is_registered() {
        let awaited = group.awaited_ranks();
        if told != awaited {
            if !awaited.is_empty() {
                let (name, worker) = (group.group(), &config.worker);
                line(format!(
                    "group {name} waits for {}",
                    missing(&awaited, worker.world, &worker.rendezvous)
                ));
            }
            told = awaited;
        }
        tokio::time::sleep(JOIN_POLL).await;
    }
}

fn missing(ranks: &[usize], world: usize, meeting: &str) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {} of {world} at {meeting}; it serves nothing until then", numbers.join(", "))
}

/// What the group has joined, once it has.
async fn joined(config: &Config, router: Option<&Client>, group: &WorkerHandle) -> anyhow::Result<String> {
    Ok(match router {
        None => format!("is registered in etcd at {}", config.etcd.endpoints.join(", ")),
        Some(router) if known_to(router, group).await => format!("has joined {}", config.server),
        Some(_) => format!("is registered, but not yet seen by {}", config.server),
    })
}

/// Waits until the router places sessions on the group: it hears of a registration a moment after the store does.
async fn known_to(router: &Client, group: &WorkerHandle) -> bool {
    let seen = async {
        loop {
            let groups = router.list_groups().await.unwrap_or_default();
            if groups.iter().any(|known| known.id == group.group().as_str()) {
                return;
            }
            tokio::time::sleep(JOIN_POLL).await;
        }
    };
    tokio::time::timeout(JOIN_LIMIT, seen).await.is_ok()
}

async fn start(config: &Config, telemetry: &Telemetry) -> anyhow::Result<(WorkerHandle, Option<Client>)> {
    let failed = || format!("cannot start group {}", config.worker.group);
    // What is wrong here is told now, and not when the store is there at last.
    let worker = config.worker.clone();
    let checked = tokio::task::spawn_blocking(move || Worker::check_here(&worker)).await?;
    checked.with_context(failed)?;
    let (store, router) = placing::of_worker(config, &Clock::system()).await?;
    announce_loading(&config.worker, 1);
    let started = Worker::start_observed(config.worker.clone(), store, Clock::system(), telemetry).await;
    Ok((started.with_context(failed)?, router))
}

/// What was loaded and what the group has.
pub fn announce_ready(group: &WorkerHandle) {
    let report = group.report();
    line(format!(
        "  {}: {} ({}) loaded in {}; {}; KV pool of {} ({}); context {}",
        group.group(),
        report.model,
        report.architecture,
        time(report.elapsed),
        counted(report.threads as u64, "thread"),
        counted(report.slots as u64, "token"),
        bytes(report.kv_bytes),
        count(report.context as u64),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named() {
        assert_eq!(missing(&[1], 2, "host:7100"), "rank 1 of 2 at host:7100; it serves nothing until then");
        assert!(missing(&[1, 3], 4, "host:7100").starts_with("ranks 1, 3 of 4 at host:7100"));
    }
}

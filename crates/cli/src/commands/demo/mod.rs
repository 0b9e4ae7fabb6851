//! `hawser demo`: an agent session from its first turn over the loss of its group to its last.

mod cluster;
mod play;
mod script;

use std::path::PathBuf;

use hawser_client::Client;

use self::cluster::{Cluster, Setup};
use self::play::{Plan, Play};
use super::serving::threads_each;
use crate::args::Global;
use crate::config::{Config, Overrides};
use crate::console::{bold, bytes, dim, line, time};
use crate::models;

const GROUPS: [&str; 2] = ["harbour", "quay"];

const EXAMPLES: &str = "\
Examples:
  hawser demo                                      with a router and two groups of its own
  hawser demo --turns 3
  hawser demo --server http://127.0.0.1:7070       on a cluster that runs; no group is stopped then

What is written in advance: the questions, the tool calls and the tool results. What is not: the answers, which the \
model generates, and which stay in the session's history as they are.";

/// Play an agent session on two worker groups while a second session runs beside it, then stop the group that owns
/// the first one and see it go on at the other.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// URI of a router that runs, instead of starting a cluster
    #[arg(long, value_name = "URI")]
    server: Option<String>,
    /// A .gguf file, a checkpoint directory, or a name in the folder of models [default: smollm2-135m]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Turns to play
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=8))]
    turns: u16,
    /// Stop the owning group after this turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    stop_after: u16,
    /// Most tokens of one answer
    #[arg(long, value_name = "N", default_value_t = 60)]
    max_tokens: u32,
}

impl Options {
    fn plan(&self) -> Plan {
        Plan {
            turns: usize::from(self.turns),
            stop_after: usize::from(self.stop_after.min(self.turns.saturating_sub(1)).max(1)),
            max_tokens: self.max_tokens,
        }
    }
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    // Cancel-safe: dropping the demo ends its child processes.
    tokio::select! {
        done = Box::pin(demo(global, options)) => done,
        _ = tokio::signal::ctrl_c() => {
            line("\nstopped");
            Ok(())
        }
    }
}

async fn demo(global: &Global, options: &Options) -> anyhow::Result<()> {
    if let Some(server) = &options.server {
        let client = super::connect(global, Some(server)).await?;
        return Box::pin(Play::new(client, options.plan()).run(None)).await;
    }
    let mut flags = Overrides::default();
    flags.set("worker.model", options.model.as_ref().map(|path| path.display().to_string()));
    let config = Config::load(global, flags)?;
    let model = models::resolve(&config.worker.model, &global.model_dir)?;
    let setup =
        Setup { model, groups: GROUPS.map(str::to_owned).to_vec(), threads: threads_each(GROUPS.len()) };
    line(format!(
        "starting a router and {} worker groups, each with its own copy of {} ({}) …",
        GROUPS.len(),
        setup.model.display(),
        bytes(models::size(&setup.model)),
    ));
    let clock = hawser_common::clock::Clock::system();
    let began = clock.now();
    let mut cluster = Cluster::start(&setup).await?;
    let ready = time(clock.now().since(began));
    line(format!("ready in {ready}: groups {} behind {}\n", GROUPS.join(" and "), cluster.uri()));
    let client = Client::connect(cluster.uri()).await?;
    Box::pin(Play::new(client, options.plan()).run(Some(&mut cluster))).await?;
    line(dim("stopping the router and the group that is left …"));
    cluster.stop().await?;
    closing();
    Ok(())
}

fn closing() {
    line(format!(
        "\n{}\n  \
           hawser up --groups 2      the same cluster in one process, to keep\n  \
           hawser chat               talk to it, from another terminal\n  \
           hawser status             who owns which session, and what is left of the pools\n  \
           hawser bench engine       what the engine reaches on this machine, and what the machine allows\n\
         (the command is target/release/hawser where it is not installed)",
        bold("Try next:")
    ));
}

//! `hawser router`: the entry point, with the placement store that workers join.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_placement::EmbeddedOptions;
use hawser_router::Router;

use super::placing::{self, Placement};
use super::serving::{StopSignals, announce_stop, cut_short, flush, observe, scheme};
use crate::args::Global;
use crate::config::{Config, Overrides, StoreKind};
use crate::console::line;

const EXAMPLES: &str = "\
Examples:
  hawser router
  hawser router --listen 0.0.0.0:7070
  hawser worker --group a --router http://127.0.0.1:7070      (from another terminal)
  hawser router --etcd http://etcd-0:2379,http://etcd-1:2379   (one of several routers)";

/// Run a router. It keeps the placement store in memory and serves it to the workers that join, or it shares one in etcd
/// with other routers.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Keep placement in the etcd of these members: for several routers, and for owners that outlive a router
    #[arg(long, value_name = "URI", value_delimiter = ',')]
    etcd: Vec<String>,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let mut flags = Overrides::default();
    flags.set("router.listen", options.listen.map(|address| address.to_string()));
    flags.set_etcd(&options.etcd);
    let config = Config::load(global, flags)?;
    config.validate()?;
    config.print();
    let pipeline = observe(global, &config, "router", "info").await?;
    let served = serve(&config, pipeline.telemetry()).await;
    flush(pipeline, served).await
}

async fn serve(config: &Config, telemetry: &Telemetry) -> anyhow::Result<()> {
    let mut stops = StopSignals::listen()?;
    let clock = Clock::system();
    let tasks = Tasks::new();
    let Placement { store, embedded } =
        placing::of_router(config, &clock, &tasks, EmbeddedOptions::served())?;
    let router = Router::start_observed(&config.router, store, embedded, clock, telemetry)
        .context("cannot start the router")?;
    let uri = format!("{}://{}", scheme(&config.router.tls), router.addr());
    line(format!("router listens on {uri}"));
    let joins = match config.store {
        StoreKind::Embedded => format!("--router {uri}"),
        StoreKind::Etcd => format!("--etcd {}", config.etcd.endpoints.join(",")),
    };
    line(format!("add groups with: hawser worker {joins} --group NAME"));
    stops.next().await;
    let grace = Duration::from_secs(config.grace_s);
    announce_stop(grace);
    // Cancel-safe: the process ends either way.
    tokio::select! {
        _ = router.shutdown(grace) => {
            tasks.shutdown(grace).await;
            line("stopped");
        }
        () = stops.next() => return Err(cut_short(&[]).await.into()),
    }
    Ok(())
}

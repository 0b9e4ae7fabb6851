//! `hawser router`: the entry point, with the placement store that workers join.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_placement::{EmbeddedOptions, EmbeddedStore, Store};
use hawser_router::Router;

use super::serving::{announce_stop, scheme, stop_signal};
use crate::args::Global;
use crate::config::{Config, Overrides};
use crate::console::line;

const EXAMPLES: &str = "\
Examples:
  hawser router
  hawser router --listen 0.0.0.0:7070
  hawser worker --group a --router http://127.0.0.1:7070      (from another terminal)";

/// Run a router. It keeps the placement store in memory and serves it to the workers that join.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

pub async fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let mut flags = Overrides::default();
    flags.set("router.listen", options.listen.map(|address| address.to_string()));
    let config = Config::load(global, flags)?;
    config.validate()?;
    config.print();
    let clock = Clock::system();
    let tasks = Tasks::new();
    let embedded = EmbeddedStore::start(clock.clone(), &tasks, EmbeddedOptions::served());
    let store: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&embedded);
    let router =
        Router::start(&config.router, store, Some(embedded), clock).context("cannot start the router")?;
    let uri = format!("{}://{}", scheme(&config.router.tls), router.addr());
    line(format!("router listens on {uri}"));
    line(format!("add groups with: hawser worker --router {uri} --group NAME"));
    stop_signal().await?;
    let grace = Duration::from_secs(config.grace_s);
    announce_stop(grace);
    // Cancel-safe: the process ends either way.
    tokio::select! {
        _ = router.shutdown(grace) => {
            tasks.shutdown(grace).await;
            line("stopped");
        }
        again = stop_signal() => again?,
    }
    Ok(())
}

//! The subcommands: one module each, with its options and what it does.

pub mod bench;
mod bench_cluster;
mod bench_ranks;
mod bench_retention;
pub mod chat;
pub mod config;
pub mod demo;
pub mod eval;
pub mod generate;
pub mod inspect;
pub mod key;
pub mod placing;
pub mod pull;
pub mod router;
pub mod serving;
pub mod speaking;
pub mod status;
pub mod up;
pub mod worker;

use std::future::Future;

use anyhow::Context;
use hawser_client::Client;
use hawser_common::telemetry;

use crate::args::{Cli, Command, Global};
use crate::config::{Config, Overrides};

/// Runs what the command line asks for.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, command } = cli;
    // What serves may have its format in the configuration, which it reads first.
    if !matches!(&command, Command::Up(_) | Command::Router(_) | Command::Worker(_)) {
        let filter = global.log.as_deref().unwrap_or("warn");
        telemetry::init(filter, global.log_format.unwrap_or_default())?;
    }
    match command {
        Command::Up(options) => block_on(up::run(&global, &options)),
        Command::Router(options) => block_on(router::run(&global, &options)),
        Command::Worker(options) => block_on(worker::run(&global, &options)),
        Command::Chat(options) => block_on(chat::run(&global, &options)),
        Command::Generate(options) => block_on(generate::run(&global, &options)),
        Command::Status(options) => block_on(status::run(&global, &options)),
        Command::Inspect(options) => block_on(inspect::run(&global, &options)),
        Command::Demo(options) => block_on(demo::run(&global, &options)),
        Command::Pull(options) => pull::run(&global, &options),
        Command::Bench(options) => bench::run(&global, &options),
        Command::Eval(options) => eval::run(&global, &options),
        Command::Key(options) => key::run(&options),
        Command::Config(options) => config::run(&global, &options),
    }
}

/// Runs a command's future on a fresh runtime.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime's threads")?;
    let done = runtime.block_on(work);
    // A thread that waits for a line from the keyboard never ends by itself.
    runtime.shutdown_background();
    done
}

/// Connects to the server that `--server`, the environment or the file names.
async fn connect(global: &Global, server: Option<&str>) -> anyhow::Result<Client> {
    let mut flags = Overrides::default();
    flags.set("server", server);
    let config = Config::load(global, flags)?;
    Ok(config.connect().await?)
}

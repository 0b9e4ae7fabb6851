//! The command line: what there is, and help that one can learn from.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    bench, chat, config, demo, eval, generate, inspect, key, pull, router, status, up, worker,
};

const EXAMPLES: &str = "\
First steps:
  hawser pull                fetch the demo model (98 MB)
  hawser up --groups 2       a router and two worker groups on this machine
  hawser chat                talk to it, from another terminal
  hawser status              who owns which session, and what is left
  hawser inspect SESSION     what became of each of its tokens
  hawser demo                watch an agent session move to another group

The same as separate processes:
  hawser router
  hawser worker --group a
  hawser worker --group b

Configuration: defaults, then a TOML file (--config), then variables
(HAWSER_WORKER__THREADS=2 sets worker.threads), then flags. `hawser config`
shows what is in effect; docs/config.md describes every key.";

/// Serves language models to long-running agents: every session is pinned to a worker group that keeps its KV cache,
/// so that a turn costs what is new in it and not the whole history.
#[derive(Debug, Parser)]
#[command(name = "hawser", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Configuration file (TOML)
    #[arg(long, global = true, env = "HAWSER_CONFIG", value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,
    /// Set one configuration key, such as worker.step_tokens=128; may be repeated
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", help_heading = "Global options")]
    pub set: Vec<String>,
    /// Folder of models
    #[arg(
        long,
        global = true,
        env = "HAWSER_MODEL_DIR",
        value_name = "DIR",
        default_value = "models",
        help_heading = "Global options"
    )]
    pub model_dir: PathBuf,
    /// Which log lines to show on standard error: off, error, warn, info, debug, or per crate as in
    /// info,hawser_router=debug [default: info for router and worker, else warn]
    #[arg(long, global = true, env = "HAWSER_LOG", value_name = "FILTER", help_heading = "Global options")]
    pub log: Option<String>,
    /// Log lines as text or as json [default: telemetry.log_format, else text]
    #[arg(
        long,
        global = true,
        env = "HAWSER_LOG_FORMAT",
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub log_format: Option<hawser_common::telemetry::LogFormat>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything on this machine: a router and worker groups in one process
    Up(up::Options),
    /// Run a router, which also keeps the placement store
    Router(router::Options),
    /// Run one worker group, which joins a router
    Worker(worker::Options),
    /// Talk to a model in a session
    Chat(chat::Options),
    /// Generate once from a prompt, streaming to standard output
    Generate(generate::Options),
    /// Show groups, sessions and what is left of the pools
    Status(status::Options),
    /// Show which tokens of a session are live, dead, shared and protected, turn by turn
    Inspect(inspect::Options),
    /// Fetch a model
    Pull(pull::Options),
    /// Measure the engine on this machine
    Bench(bench::Options),
    /// Measure what retention policies cost and save on recorded sessions
    Eval(eval::Options),
    /// Play an agent session on two worker groups and stop the one that owns it
    Demo(demo::Options),
    /// Make an API key and the entry for the router's file of keys
    Key(key::Options),
    /// Show the configuration in effect
    Config(config::Options),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Where help is shown, lines longer than this are broken.
    const COLUMNS: usize = 100;

    /// A line that is longer ends its paragraph: one that was broken by hand as well would be ragged.
    fn check(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines: Vec<&str> = help.lines().collect();
        for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
            let is_example = line.starts_with(' ');
            let is_whole = !is_example && (next.is_empty() || line.ends_with(['.', ':']));
            let fits = line.chars().count() <= COLUMNS;
            assert!(fits || is_whole, "{}: this line would be broken again: {line}", command.get_name());
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn help_is_not_broken_twice() {
        check(&Cli::command());
    }
}

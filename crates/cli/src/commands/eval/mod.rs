//! `hawser eval`: what a retention policy costs and saves, on recorded trajectories.

mod hits;
mod outputs;
mod retention;
mod traces;

use crate::args::Global;

/// Measure retention policies on recorded sessions.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Replay recorded sessions under policies and budgets, and compare with keeping everything
    Retention(Box<retention::Options>),
    /// Make synthetic sessions whose user goes from one topic to another and back
    MakeTraces(traces::Options),
}

pub fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    match &options.what {
        What::Retention(options) => retention::run(global, options),
        What::MakeTraces(options) => traces::run(options),
    }
}

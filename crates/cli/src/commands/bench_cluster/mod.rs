//! `hawser bench cluster`: routers, a store and simulated groups in this process, under the load of many agents.
//!
//! Everything but the model's arithmetic is the real thing: gRPC over loopback, leases, claims, watches, schedulers.
//! Promises to say how many sessions had two owners, which must be none.

mod cluster;
mod drive;
mod exchange;
mod history;
mod meter;
mod passing;
mod plan;
mod report;
mod run;
mod tally;
mod watched;

use anyhow::bail;

use self::plan::{Plan, Preset};
use self::report::Report;
use crate::console::line;

pub const EXAMPLES: &str = "\
Examples:
  hawser bench cluster warm
  hawser bench cluster churn --scale 0.1
  hawser bench cluster claims --etcd http://127.0.0.1:2379 --json > claims.json

The groups are simulated: nothing is computed, and steps take no time but where a
preset says so. docs/benchmarks.md describes the presets and what is measured.";

/// Measure routers and placement under the load of many agents, with simulated groups.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "warm")]
    preset: Preset,
    /// Size of the run, as a share of the full one
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    scale: f64,
    /// Endpoint of an etcd to place sessions with, instead of the embedded store; may be repeated
    #[arg(long, value_name = "URI")]
    etcd: Vec<String>,
    /// Routers, instead of the preset's number
    #[arg(long, value_name = "N")]
    routers: Option<usize>,
    /// Worker groups, instead of the preset's number
    #[arg(long, value_name = "N")]
    groups: Option<usize>,
    /// Sessions, instead of the preset's number
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Turns of each session, instead of the preset's number
    #[arg(long, value_name = "N")]
    turns: Option<u32>,
    /// Turns that run at once, instead of the preset's number
    #[arg(long, value_name = "N")]
    streams: Option<usize>,
    /// Pause of a stream after each turn, instead of the preset's
    #[arg(long, value_name = "MS")]
    think_ms: Option<u64>,
    /// Times of the simulated engines' steps, as a share of a GPU's (0: none), instead of the preset's
    #[arg(long, value_name = "X")]
    time_scale: Option<f64>,
    /// End with an error where a target is missed, too
    #[arg(long)]
    check: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Options {
    fn plan(&self) -> anyhow::Result<Plan> {
        if !(1e-4..=100.0).contains(&self.scale) {
            bail!("--scale is {}; allowed is 0.0001 to 100", self.scale);
        }
        let mut plan = Plan::new(self.preset, self.scale);
        plan.routers = self.routers.unwrap_or(plan.routers);
        plan.groups = self.groups.unwrap_or(plan.groups);
        plan.sessions = self.sessions.unwrap_or(plan.sessions);
        plan.turns = self.turns.unwrap_or(plan.turns);
        plan.streams = self.streams.unwrap_or(plan.streams);
        plan.think_ms = self.think_ms.unwrap_or(plan.think_ms);
        plan.simulated.time_scale = self.time_scale.unwrap_or(plan.simulated.time_scale);
        plan.simulated.validate()?;
        let bounds = [
            ("routers", plan.routers, 1, 64),
            ("groups", plan.groups, 1, 10_000),
            ("sessions", plan.sessions, 1, 10_000_000),
            ("turns", plan.turns as usize, 1, 100_000),
            ("streams", plan.streams, 0, 100_000),
        ];
        for (name, found, low, high) in bounds {
            if !(low..=high).contains(&found) {
                bail!("--{name} is {found}; allowed is {low} to {high}");
            }
        }
        if plan.longest() >= plan.slots {
            bail!(
                "a session of {} tokens does not fit a pool of {}: lower --turns",
                plan.longest(),
                plan.slots
            );
        }
        Ok(plan)
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let plan = options.plan()?;
    let report = run::run(&plan, &options.etcd)?;
    if options.json {
        line(serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    ended(&report, options.check)
}

/// Errors and double owners are failures at any scale; targets only where asked for.
fn ended(report: &Report, check: bool) -> anyhow::Result<()> {
    if report.double_owners > 0 || report.served_by_strangers > 0 {
        bail!(
            "{} sessions had two owners, and {} turns were served without a claim",
            report.double_owners,
            report.served_by_strangers
        );
    }
    if report.errors_in_all() > 0 {
        bail!("{} turns failed", report.errors_in_all());
    }
    let missed = report.checks.iter().filter(|check| !check.met).count();
    if check && missed > 0 {
        bail!("{missed} of {} targets were missed", report.checks.len());
    }
    Ok(())
}

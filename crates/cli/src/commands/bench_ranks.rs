//! `hawser bench engine --tp`: one model on one rank, on ranks that are threads, and on ranks that are processes.
//!
//! Ranks run as a worker runs them: the leader says each step to the others, which carry it out; processes are
//! `hawser worker`s that meet over TCP on loopback. Promises that the ways take turns, round by round, so that what
//! disturbs the machine disturbs all of them, and that medians are over rounds. Never talks to a router.

mod session;
mod table;
mod way;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hawser_common::clock::Clock;
use hawser_device::kv::RowType;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::ExecutorOptions;
use hawser_model::layers::Model;
use hawser_model::shard::{Blocks, ShardPlan};
use serde::Serialize;

use self::session::{Session, Sizes};
use self::way::Way;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Ranks, of one thread each.
    pub tp: NonZeroUsize,
    /// Also with ranks that are processes.
    pub processes: bool,
    pub rounds: NonZeroUsize,
    pub row_type: RowType,
    pub prefill: Vec<usize>,
    pub depths: Vec<usize>,
}

/// What came out, by way, in the order in which they took turns.
#[derive(Debug, Serialize)]
pub struct RanksReport {
    pub ranks: usize,
    pub rounds: usize,
    pub ways: Vec<WayReport>,
}

#[derive(Debug, Serialize)]
pub struct WayReport {
    pub way: String,
    pub decode: Vec<Figures>,
    pub prefill: Vec<Figures>,
}

/// One length, medians over rounds. Decode: per step of one token; prefill: per prompt.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Live tokens before the decoded one, or tokens of the prompt.
    pub tokens: usize,
    pub tokens_per_second: f64,
    /// Of the leader's time, what it spent in calls to other ranks, waiting for them included.
    pub share_across_ranks: f64,
    /// What the leader sends: calls in which it takes part, messages and bytes.
    pub calls: f64,
    pub messages: f64,
    pub bytes: f64,
    /// Seconds that each rank computed.
    pub computing_seconds: Vec<f64>,
}

/// Measures the checkpoint at `path`; `progress` is told what comes next.
pub fn run(
    path: &Path,
    checkpoint: &Checkpoint,
    measure: &Measure,
    clock: &Clock,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<RanksReport> {
    let context = checkpoint.config().context_length;
    let fits = |lengths: &[usize]| -> Vec<usize> {
        lengths.iter().copied().filter(|&length| length > 0 && length + session::DECODED < context).collect()
    };
    let depths: Vec<usize> =
        measure.depths.iter().copied().filter(|depth| depth + session::DECODED < context).collect();
    let sizes = Sizes::new(checkpoint.config().vocab, &depths, &fits(&measure.prefill));
    let mut ways = ways(path, checkpoint, measure, &sizes, clock)?;
    let mut sessions = Vec::new();
    for way in &mut ways {
        progress(&format!("{}: a session of {} tokens", way.name, sizes.longest));
        sessions.push(Session::fill(way, &sizes)?);
    }
    let mut rounds: Vec<Vec<(Vec<Figures>, Vec<Figures>)>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=measure.rounds.get() {
        progress(&if round == 0 { "one round to warm up".to_owned() } else { format!("round {round}") });
        for ((way, session), done) in ways.iter_mut().zip(&mut sessions).zip(&mut rounds) {
            let decode = sizes.depths.iter().map(|&depth| session.decode(way, depth, clock));
            let decode = decode.collect::<anyhow::Result<_>>()?;
            let prefill = sizes.prefill.iter().map(|&tokens| session.prefill(way, tokens, clock));
            let prefill = prefill.collect::<anyhow::Result<_>>()?;
            if round > 0 {
                done.push((decode, prefill));
            }
        }
    }
    let reports = ways.iter().zip(rounds).map(|(way, rounds)| {
        let (decode, prefill): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
        WayReport { way: way.name.clone(), decode: medians(&decode), prefill: medians(&prefill) }
    });
    let reports = reports.collect();
    ways.into_iter().try_for_each(Way::end)?;
    Ok(RanksReport { ranks: measure.tp.get(), rounds: measure.rounds.get(), ways: reports })
}

fn ways(
    path: &Path,
    checkpoint: &Checkpoint,
    measure: &Measure,
    sizes: &Sizes,
    clock: &Clock,
) -> anyhow::Result<Vec<Way>> {
    let world = measure.tp;
    ensure!(world.get() > 1, "--tp compares one rank with several: name at least 2");
    let options = |threads| ExecutorOptions { slots: sizes.slots(), row_type: measure.row_type, threads };
    let plan = ShardPlan::new(checkpoint.config(), world, &Blocks::of(checkpoint)?)?;
    let load = |rank| -> anyhow::Result<Arc<Model>> {
        let shard = plan.rank(rank).context("a rank of the plan")?;
        Ok(Arc::new(Model::load_shard(checkpoint, shard)?))
    };
    let whole = Arc::new(Model::load(checkpoint)?);
    let shards = (0..world.get()).map(load).collect::<anyhow::Result<Vec<_>>>()?;
    let one = NonZeroUsize::MIN;
    let mut ways = vec![
        Way::threads(format!("1 rank, {world} threads"), vec![Arc::clone(&whole)], options(world))?,
        Way::threads("1 rank, 1 thread".to_owned(), vec![whole], options(one))?,
        Way::threads(format!("{world} ranks, threads"), shards.clone(), options(one))?,
    ];
    if measure.processes {
        let leader = (Arc::clone(&shards[0]), checkpoint.digest().to_string());
        let name = format!("{world} ranks, processes");
        ways.push(Way::processes(name, path, leader, (world.get(), options(one)), clock)?);
    }
    Ok(ways)
}

/// From `[round][length]` to the median of each length, by tokens per second.
fn medians(rounds: &[Vec<Figures>]) -> Vec<Figures> {
    let lengths = rounds.first().map_or(0, Vec::len);
    let median = |length: usize| {
        let mut all: Vec<&Figures> = rounds.iter().map(|round| &round[length]).collect();
        all.sort_unstable_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
        all[all.len() / 2].clone()
    };
    (0..lengths).map(median).collect()
}

pub use table::text;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn figures(tokens: usize, tokens_per_second: f64) -> Figures {
        Figures {
            tokens,
            tokens_per_second,
            share_across_ranks: 0.25,
            calls: 63.0,
            messages: 63.0,
            bytes: 147_456.0,
            computing_seconds: vec![0.004, 0.003],
        }
    }

    #[test]
    fn the_median_round_counts_for_each_length() {
        let rounds = [
            vec![figures(0, 10.0), figures(9, 5.0)],
            vec![figures(0, 30.0), figures(9, 1.0)],
            vec![figures(0, 20.0), figures(9, 9.0)],
        ];
        let medians: Vec<_> =
            medians(&rounds).iter().map(|length| (length.tokens, length.tokens_per_second)).collect();
        assert_eq!(medians, [(0, 20.0), (9, 5.0)]);
    }
}

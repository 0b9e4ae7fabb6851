//! `hawser bench retention`: what retention costs and saves in time, on one long session.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use hawser_common::retention::Retention;
use hawser_device::kv::RowType;
use hawser_eval::bench::{Course, Timed, run as run_course};
use hawser_eval::run::Candidate;
use hawser_eval::session::Engine;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions};
use hawser_model::layers::Model;

use crate::args::Global;
use crate::console::{count, counted, error, line};
use crate::models;
use crate::table::{Align, Table};

pub const EXAMPLES: &str = "\
Examples:
  hawser bench retention
  hawser bench retention --policies full,intent-memory,h2o --budget 512 --tokens 4096
  hawser bench retention --json > retention.json

A session of random tokens grows turn by turn; every policy runs the same one. Policies are interleaved over the \
repetitions, and the one with the median time is shown.";

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A .gguf file, a checkpoint directory, or a name in the folder of models
    #[arg(long, value_name = "MODEL", default_value = models::DEMO_NAME)]
    model: PathBuf,
    /// Policies with their options, as for `hawser eval retention`
    #[arg(
        long,
        value_name = "POLICY,…",
        value_delimiter = ',',
        default_value = "full,streaming,intent-memory,h2o,snapkv"
    )]
    policies: Vec<String>,
    /// Tokens of live history after a prune
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    budget: u32,
    /// Tokens of the whole session
    #[arg(long, value_name = "N", default_value_t = 7_680)]
    tokens: usize,
    /// Tokens that a turn adds
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    turn: u16,
    /// Of them, tokens that are decoded one by one
    #[arg(long, value_name = "N", default_value_t = 32)]
    decoded: usize,
    /// CPU threads
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN))]
    threads: NonZeroUsize,
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(global: &Global, options: &Options) -> anyhow::Result<()> {
    let path = models::resolve(&options.model, &global.model_dir)?;
    let checkpoint = Checkpoint::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let context = checkpoint.config().context_length;
    anyhow::ensure!(
        options.tokens <= context,
        "--tokens is {}; the model's context holds {context}",
        options.tokens
    );
    let model = Model::load(&checkpoint)?;
    let (slots, threads) = (options.tokens + 2, options.threads);
    let executor = Executor::new(model, ExecutorOptions { slots, row_type: RowType::F16, threads })?;
    let mut engine = Engine::new(executor, 256, 0);
    let course =
        Course { tokens: options.tokens, turn: usize::from(options.turn), decoded: options.decoded, seed: 1 };
    let candidates =
        options.policies.iter().map(|text| Candidate::parse(text)).collect::<Result<Vec<_>, _>>()?;
    never_pruned(&candidates, options).into_iter().for_each(error);
    let mut timed: Vec<Vec<Timed>> = vec![Vec::new(); candidates.len()];
    for round in 0..options.runs {
        for (candidate, timed) in candidates.iter().zip(&mut timed) {
            error(format!("  {} ({} of {}) …", candidate.name, round + 1, options.runs));
            let mut retention = candidate.retention.clone();
            retention.budget_tokens = options.budget;
            let mut one = run_course(&mut engine, &retention, &course)?;
            one.policy.clone_from(&candidate.name);
            timed.push(one);
        }
    }
    let medians: Vec<Timed> = timed.into_iter().map(median).collect();
    if options.json {
        line(serde_json::to_string_pretty(&medians)?);
    } else {
        line(format!(
            "{}: {} in turns of {} ({} decoded), budget {}, {}",
            checkpoint.name(),
            counted(options.tokens as u64, "token"),
            options.turn,
            options.decoded,
            count(u64::from(options.budget)),
            counted(threads.get() as u64, "thread")
        ));
        line(table(&medians).to_string());
    }
    Ok(())
}

/// Says of which policies this course shows nothing, and why.
fn never_pruned(candidates: &[Candidate], options: &Options) -> Vec<String> {
    let turn = usize::from(options.turn);
    let last_turn = if options.tokens.is_multiple_of(turn) { turn } else { options.tokens % turn };
    // The last prune may come before the last turn's answer.
    let longest = options.tokens.saturating_sub(options.decoded.min(last_turn)) as u64;
    let mut names: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for candidate in candidates {
        let retention = Retention { budget_tokens: options.budget, ..candidate.retention.clone() };
        let limit = u64::from(options.budget) + u64::from(retention.trigger_tokens);
        if retention.prunes() && longest <= limit {
            names.entry(limit).or_default().push(&candidate.name);
        }
    }
    let hint = |(limit, names): (u64, Vec<&str>)| {
        format!(
            "{}: nothing will be pruned: the last turn begins its answer at token {}, and a prune needs more than {} \
             (--budget and the trigger); give more --tokens or a smaller --budget",
            names.join(", "),
            count(longest),
            count(limit)
        )
    };
    names.into_iter().map(hint).collect()
}

fn total(timed: &Timed) -> f64 {
    timed.prefill_ms + timed.prune_ms + timed.decode_ms
}

fn median(mut runs: Vec<Timed>) -> Timed {
    runs.sort_by(|a, b| total(a).total_cmp(&total(b)));
    runs.swap_remove(runs.len() / 2)
}

fn table(runs: &[Timed]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("TOTAL S", right),
        ("PREFILL S", right),
        ("DECODE S", right),
        ("PRUNE MS", right),
        ("PER PRUNE", right),
        ("LAST TOK/S", right),
        ("ROWS READ", right),
        ("PEAK SLOTS", right),
    ]);
    for run in runs {
        table.row(vec![
            run.policy.clone(),
            format!("{:.2}", total(run) / 1e3),
            format!("{:.2}", run.prefill_ms / 1e3),
            format!("{:.2}", run.decode_ms / 1e3),
            format!("{:.0}", run.prune_ms),
            format!("{:.1} ms of {}", run.median_prune_ms, count(run.median_candidates as u64)),
            format!("{:.1}", run.last_turn_decode_tok_per_s),
            format!("{:.0} %", 100.0 * run.kv_rows_read as f64 / run.kv_rows_full.max(1) as f64),
            count(run.peak_slots as u64),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn hints(tokens: &str, budget: &str, policies: &str) -> Vec<String> {
        let line = ["bench", "--tokens", tokens, "--budget", budget, "--policies", policies];
        let options = Line::parse_from(line).options;
        let candidates: Vec<Candidate> =
            options.policies.iter().map(|text| Candidate::parse(text).unwrap()).collect();
        never_pruned(&candidates, &options)
    }

    #[test]
    fn policies_that_will_not_prune_are_named_before_they_run() {
        // 32 tokens of the last turn are its answer.
        assert_eq!(hints("1057", "1024", "full,h2o,snapkv"), [""; 0]);
        let found = hints("1056", "1024", "full,h2o,snapkv");
        assert_eq!(found.len(), 1);
        let start =
            "h2o, snapkv: nothing will be pruned: the last turn begins its answer at token 1,024, and";
        assert!(found[0].starts_with(start), "{found:?}");
        assert_eq!(hints("1200", "1024", "late@h2o:trigger_tokens=256,h2o").len(), 1);
        assert_eq!(hints("100", "0", "h2o").len(), 0, "without a budget nothing is expected");
    }
}

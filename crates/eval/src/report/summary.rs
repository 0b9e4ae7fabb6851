//! A run in short: one row for each policy at each budget, and its differences to baselines.
//!
//! Per-token measures are averaged per session first and over sessions then, so that a long session weighs as much as
//! a short one. Splits and modes are never mixed. The seeds of `random` are averaged per session.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::budget::BudgetLabel;
use super::equal::{Comparison, Draws, Pair, compare};
use super::measure::{
    Cell, Cells, Place, Tokens, cells, delta_nll, family, kl, needles_live, nll_full, peak_live_share,
    prompt_share, ratio, reads_share, top1, total,
};
use super::result::{Mode, RunInfo, RunResult, TurnResult};
use crate::stats::{Interval, RESAMPLES, paired_bootstrap, quantile};

/// What a summary compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Policies that every other is compared with; the first is the one shown beside each result.
    pub baselines: Vec<String>,
    /// Draws for each interval.
    pub resamples: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { baselines: vec!["random".to_owned()], resamples: RESAMPLES }
    }
}

/// What a run says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub run: RunInfo,
    pub baselines: Vec<String>,
    pub resamples: usize,
    /// By split, mode and budget (largest first), then by KL.
    pub rows: Vec<Row>,
    /// Every policy against every baseline and, to see the error of the lines between points, with names exchanged.
    pub equal_reads: Vec<Comparison>,
    /// Comparisons that could not be made.
    pub refused: Vec<Refused>,
}

/// One policy at one budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub split: String,
    pub mode: Mode,
    pub budget: BudgetLabel,
    pub policy: String,
    pub sessions: usize,
    /// Most results that one session was averaged over.
    pub seeds: usize,
    pub all: Option<Fidelity>,
    pub argument: Option<Fidelity>,
    pub needle: Option<Needles>,
    /// Rows read (decoding, scoring, copies) over those of the full cache.
    pub reads_share: Option<f64>,
    /// Peak of live tokens over the length of the session.
    pub peak_live_share: Option<f64>,
    /// Matched prompt tokens with a live row, over prompt tokens.
    pub hit_live: Option<f64>,
    /// Matched prompt tokens that were skipped because they are dead, over prompt tokens.
    pub hit_dead: Option<f64>,
    /// Rows computed again so that positions could come back, over prompt tokens: prefill, so apart from reads.
    pub refilled_share: Option<f64>,
    /// Positions marked dead, per session.
    pub evicted: f64,
    /// Slots returned to the pool, per session.
    pub freed: f64,
    /// Positions revived, per session.
    pub revived: f64,
    /// Events whose forced tokens exceeded the budget, per session.
    pub overflows: f64,
    /// Time of scoring per prune event, in milliseconds.
    pub scoring_ms: Option<f64>,
    /// Time of prefill and of decoding per session, in milliseconds.
    pub prefill_ms: f64,
    pub decode_ms: f64,
    /// Differences to each baseline at the same budget.
    pub against: Vec<Versus>,
}

/// How close the pruned model stays to the full one: means over sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Sessions that have such tokens.
    pub sessions: usize,
    /// KL(full ‖ pruned) per token, in nats.
    pub kl: f64,
    /// 95 % of requests, those of all seeds together, have a KL per token of at most this, in nats.
    pub kl_p95: f64,
    /// Share of tokens with the same most likely token.
    pub top1: f64,
    /// Negative log-likelihood of the recorded tokens, pruned less full, in nats per token.
    pub delta_nll: f64,
}

/// How well numbers from earlier turns are found again: means over sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Needles {
    /// Sessions that have needles.
    pub sessions: usize,
    /// Tokens of needles that are live as the answer begins, over all of them.
    pub live: f64,
    /// Negative log-likelihood of the recorded numbers, in nats per token, with the full cache.
    pub nll_full: f64,
    /// The same with the pruned one, less that.
    pub delta_nll: f64,
}

/// KL of a policy less that of a baseline at the same budget, over sessions of both; below 0 is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    pub baseline: String,
    pub sessions: usize,
    /// `None` for fewer than two sessions.
    pub kl: Option<Interval>,
    pub argument_kl: Option<Interval>,
}

/// A comparison at equal reads that could not be made, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub policy: String,
    pub baseline: String,
    pub split: String,
    pub mode: Mode,
    pub reason: String,
}

/// The summary against `random`.
#[must_use]
pub fn summarise(run: &RunResult) -> Summary {
    summarise_with(run, &Options::default())
}

/// The summary against chosen baselines. The seed of the intervals is the run's.
#[must_use]
pub fn summarise_with(run: &RunResult, options: &Options) -> Summary {
    let cells = cells(&run.sessions);
    let draws = Draws { resamples: options.resamples, seed: run.run.seed };
    let baselines: Vec<&str> = options.baselines.iter().map(|name| family(name)).collect();
    let mut rows = Vec::new();
    for (place, policies) in &cells {
        for (policy, cell) in policies {
            let against = baselines.iter().filter(|baseline| *baseline != policy).filter_map(|baseline| {
                let other = policies.get(baseline)?;
                Some(versus(baseline, cell, other, draws))
            });
            rows.push(row(place, policy, cell, against.collect()));
        }
    }
    rows.sort_by(|a, b| {
        let place = |row: &Row| (row.split.clone(), row.mode, std::cmp::Reverse(row.budget));
        let loss = |row: &Row| row.all.map_or(f64::INFINITY, |all| all.kl);
        place(a).cmp(&place(b)).then(loss(a).total_cmp(&loss(b))).then_with(|| a.policy.cmp(&b.policy))
    });
    let (equal_reads, refused) = at_equal_reads(&cells, &baselines, draws);
    Summary {
        run: run.run.clone(),
        baselines: baselines.into_iter().map(str::to_owned).collect(),
        resamples: options.resamples,
        rows,
        equal_reads,
        refused,
    }
}

/// The summary as JSON.
#[must_use]
pub fn json(summary: &Summary) -> String {
    serde_json::to_string_pretty(summary).expect("a summary is plain data with text for keys")
}

fn row(place: &Place<'_>, policy: &str, cell: &Cell<'_>, against: Vec<Versus>) -> Row {
    let per_session =
        |of: fn(&TurnResult) -> u64| cell.mean(|session| total(session, of)).unwrap_or_default();
    let score_us: u64 = cell.turns().map(|turn| turn.score_us).sum();
    let events: u64 = cell.turns().map(|turn| u64::from(turn.events)).sum();
    Row {
        split: place.split.to_owned(),
        mode: place.mode,
        budget: place.budget,
        policy: policy.to_owned(),
        sessions: cell.sessions(),
        seeds: cell.seeds(),
        all: fidelity(cell, Tokens::All),
        argument: fidelity(cell, Tokens::Argument),
        needle: needles(cell),
        reads_share: cell.mean(reads_share),
        peak_live_share: cell.mean(peak_live_share),
        hit_live: cell.mean(|session| prompt_share(session, |turn| turn.prefix_hit.live)),
        hit_dead: cell.mean(|session| prompt_share(session, |turn| turn.prefix_hit.dead)),
        refilled_share: cell.mean(|session| prompt_share(session, |turn| turn.refilled)),
        evicted: per_session(|turn| turn.evicted),
        freed: per_session(|turn| turn.freed),
        revived: per_session(|turn| turn.revived),
        overflows: per_session(|turn| u64::from(turn.budget_overflow)),
        scoring_ms: ratio(score_us as f64 / 1e3, events as f64),
        prefill_ms: per_session(|turn| turn.prefill_us) / 1e3,
        decode_ms: per_session(|turn| turn.decode_us) / 1e3,
        against,
    }
}

fn fidelity(cell: &Cell<'_>, tokens: Tokens) -> Option<Fidelity> {
    let scores = cell.turns().map(|turn| tokens.of(turn));
    let requests: Vec<f64> = scores.filter_map(|scores| ratio(scores.kl_sum, scores.tokens as f64)).collect();
    Some(Fidelity {
        sessions: cell.values(|session| kl(session, tokens)).len(),
        kl: cell.mean(|session| kl(session, tokens))?,
        kl_p95: quantile(&requests, 0.95)?,
        top1: cell.mean(|session| top1(session, tokens))?,
        delta_nll: cell.mean(|session| delta_nll(session, tokens))?,
    })
}

fn needles(cell: &Cell<'_>) -> Option<Needles> {
    Some(Needles {
        sessions: cell.values(needles_live).len(),
        live: cell.mean(needles_live)?,
        nll_full: cell.mean(|session| nll_full(session, Tokens::Needle))?,
        delta_nll: cell.mean(|session| delta_nll(session, Tokens::Needle))?,
    })
}

fn versus(baseline: &str, policy: &Cell<'_>, other: &Cell<'_>, draws: Draws) -> Versus {
    let differences = |tokens: Tokens| -> Vec<f64> {
        let theirs: BTreeMap<_, _> = other.values(|session| kl(session, tokens));
        let ours = policy.values(|session| kl(session, tokens));
        ours.into_iter().filter_map(|(trace, kl)| Some(kl - theirs.get(trace)?)).collect()
    };
    let all = differences(Tokens::All);
    let interval = |values: &[f64]| paired_bootstrap(values, draws.resamples, draws.seed);
    Versus {
        baseline: baseline.to_owned(),
        sessions: all.len(),
        kl: interval(&all),
        argument_kl: interval(&differences(Tokens::Argument)),
    }
}

fn at_equal_reads(cells: &Cells<'_>, baselines: &[&str], draws: Draws) -> (Vec<Comparison>, Vec<Refused>) {
    let mut pairs = BTreeSet::new();
    for (place, policies) in cells {
        let others = policies.keys().filter(|policy| **policy != "full");
        for (policy, baseline) in others.flat_map(|policy| baselines.iter().map(move |name| (*policy, *name)))
        {
            if policy != baseline && baseline != "full" {
                pairs.insert((place.split, place.mode, policy, baseline));
                pairs.insert((place.split, place.mode, baseline, policy));
            }
        }
    }
    let (mut compared, mut refused) = (Vec::new(), Vec::new());
    for (split, mode, policy, baseline) in pairs {
        match compare(cells, Pair { split, mode, policy, baseline }, draws) {
            Ok(comparison) => compared.push(comparison),
            Err(error) => refused.push(Refused {
                policy: policy.to_owned(),
                baseline: baseline.to_owned(),
                split: split.to_owned(),
                mode,
                reason: error.to_string(),
            }),
        }
    }
    (compared, refused)
}

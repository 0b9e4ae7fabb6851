//! Two policies at equal reads: what a budget saves differs between policies, so their losses are only comparable
//! where both read the same.
//!
//! What is done, for every session that both policies replayed:
//! 1. The baseline's results at all its budgets are points (share of reads, KL per token), and `full`, where the run
//!    has it, is one more: every policy is `full` once its budget holds the whole session. Straight lines join
//!    neighbours. Reads are those of decoding, of scoring and of copying rows back, over those of the full cache.
//! 2. At each budget of the policy, the baseline's KL is read off that line at the *policy's* share of reads for the
//!    same session. A share beyond the ends of the line is left out and counted; no line is ever continued.
//! 3. The differences, policy less baseline, go through a bootstrap over sessions: at each budget, and once over all
//!    budgets, where a session counts once with the mean of its budgets.
//!
//! Argument tokens get the same treatment on lines of their own.
//!
//! KL falls ever less steeply with reads, so a straight line lies above the baseline's true loss: an error in the
//! policy's favour, the smaller the closer the baseline's budgets lie ([`Gain::widest_gap`]). Asked with both names
//! exchanged, the question errs the other way. A claim should hold in both.
//!
//! Refused: a policy without results, results of several splits at once, no common session, and no common reads.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::budget::BudgetLabel;
use super::measure::{Cell, Cells, Place, Tokens, cells, family, kl, reads_share};
use super::result::{Mode, RunResult};
use crate::stats::{Curve, Interval, RESAMPLES, mean, paired_bootstrap};

/// Why two policies cannot be compared at equal reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("there are no results of {policy:?} in {mode}")]
    NoResults { policy: String, mode: Mode },
    #[error("results of several splits are not compared at once; take one of {splits:?}")]
    SeveralSplits { splits: Vec<String> },
    #[error("{policy:?} and {baseline:?} replayed no common session that scored tokens")]
    NoCommonSession { policy: String, baseline: String },
    #[error(
        "{policy:?} reads less or more than {baseline:?} at any budget in all {sessions} sessions; \
         add budgets to the baseline"
    )]
    NoOverlap { policy: String, baseline: String, sessions: usize },
}

/// How a policy compares with a baseline that reads as much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub policy: String,
    pub baseline: String,
    pub split: String,
    pub mode: Mode,
    /// Over all budgets of the policy.
    pub all: Gain,
    /// The same over argument tokens, where sessions have them.
    pub argument: Option<Gain>,
    /// At each budget of the policy that lies in the overlap for at least one session, largest first.
    pub budgets: Vec<AtBudget>,
}

/// The comparison at one budget of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtBudget {
    pub budget: BudgetLabel,
    pub all: Gain,
    pub argument: Option<Gain>,
}

/// Losses at equal reads, in nats per token: means over sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Sessions that were compared.
    pub sessions: usize,
    /// Sessions of both policies that had no equal reads.
    pub left_out: usize,
    /// The policy's share of reads, which is also the baseline's.
    pub reads_share: f64,
    pub policy_kl: f64,
    /// The baseline's, read off its line.
    pub baseline_kl: f64,
    /// Policy less baseline, so below 0 where the policy loses less; `None` for fewer than two sessions.
    pub difference: Option<Interval>,
    /// The widest distance in share of reads between two points of the baseline that a value was read between.
    pub widest_gap: f64,
}

/// What is compared with what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) split: &'a str,
    pub(super) mode: Mode,
    pub(super) policy: &'a str,
    pub(super) baseline: &'a str,
}

/// How intervals are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    pub(super) resamples: usize,
    pub(super) seed: u64,
}

/// Compares `policy` with `baseline` at equal reads in one mode; the module's text says how.
///
/// The run must hold one split: see [`RunResult::of_split`]. Intervals come from [`RESAMPLES`] draws with the run's
/// seed. Seeds of `random` are averaged per session before anything else.
///
/// # Errors
/// Everything the module's text refuses.
pub fn equal_reads(
    run: &RunResult,
    policy: &str,
    baseline: &str,
    mode: Mode,
) -> Result<Comparison, CompareError> {
    let splits: BTreeSet<&str> = run.sessions.iter().map(|session| session.split.as_str()).collect();
    if splits.len() > 1 {
        return Err(CompareError::SeveralSplits { splits: splits.into_iter().map(str::to_owned).collect() });
    }
    let split = splits.first().copied().unwrap_or_default();
    let draws = Draws { resamples: RESAMPLES, seed: run.run.seed };
    compare(
        &cells(&run.sessions),
        Pair { split, mode, policy: family(policy), baseline: family(baseline) },
        draws,
    )
}

/// [`equal_reads`] over results that are sorted already.
pub(super) fn compare(cells: &Cells<'_>, pair: Pair<'_>, draws: Draws) -> Result<Comparison, CompareError> {
    for policy in [pair.policy, pair.baseline] {
        if at_budgets(cells, pair, policy).next().is_none() {
            return Err(CompareError::NoResults { policy: policy.to_owned(), mode: pair.mode });
        }
    }
    let all = Matches::new(cells, pair, Tokens::All);
    let argument = Matches::new(cells, pair, Tokens::Argument);
    let names = || (pair.policy.to_owned(), pair.baseline.to_owned());
    let (policy, baseline) = names();
    if all.common.is_empty() {
        return Err(CompareError::NoCommonSession { policy, baseline });
    }
    let Some(gain) = all.over_all(draws) else {
        return Err(CompareError::NoOverlap { policy, baseline, sessions: all.common.len() });
    };
    let budgets = all.by_budget.keys().rev().filter_map(|budget| {
        let all = all.at(*budget, draws)?;
        Some(AtBudget { budget: *budget, all, argument: argument.at(*budget, draws) })
    });
    Ok(Comparison {
        policy,
        baseline,
        split: pair.split.to_owned(),
        mode: pair.mode,
        all: gain,
        argument: argument.over_all(draws),
        budgets: budgets.collect(),
    })
}

/// A policy's cells in the pair's split and mode.
fn at_budgets<'c, 'a>(
    cells: &'c Cells<'a>,
    pair: Pair<'c>,
    policy: &'c str,
) -> impl Iterator<Item = (BudgetLabel, &'c Cell<'a>)> {
    let here = move |place: &Place<'_>| place.split == pair.split && place.mode == pair.mode;
    let found = cells.iter().filter(move |(place, _)| here(place));
    found.filter_map(move |(place, policies)| Some((place.budget, policies.get(policy)?)))
}

/// One session at one budget of the policy, with the baseline at the same reads.
#[derive(Clone, Copy, Debug)]
struct Match {
    reads_share: f64,
    policy_kl: f64,
    baseline_kl: f64,
    gap: f64,
}

/// Everything that a pair has in common, over one kind of token.
struct Matches<'a> {
    by_budget: BTreeMap<BudgetLabel, BTreeMap<&'a str, Match>>,
    /// Sessions of both policies at each budget of the policy, equal reads or not.
    common_at: BTreeMap<BudgetLabel, BTreeSet<&'a str>>,
    /// Their union.
    common: BTreeSet<&'a str>,
}

impl<'a> Matches<'a> {
    fn new(cells: &Cells<'a>, pair: Pair<'_>, tokens: Tokens) -> Self {
        let curves = curves(cells, pair, tokens);
        let mut matches =
            Self { by_budget: BTreeMap::new(), common_at: BTreeMap::new(), common: BTreeSet::new() };
        for (budget, cell) in at_budgets(cells, pair, pair.policy) {
            let reads = cell.values(reads_share);
            for (trace, policy_kl) in cell.values(|session| kl(session, tokens)) {
                let (Some(curve), Some(&reads_share)) = (curves.get(trace), reads.get(trace)) else {
                    continue;
                };
                matches.common.insert(trace);
                matches.common_at.entry(budget).or_default().insert(trace);
                if let Some(read) = curve.at(reads_share) {
                    let found = Match { reads_share, policy_kl, baseline_kl: read.y, gap: read.gap };
                    matches.by_budget.entry(budget).or_default().insert(trace, found);
                }
            }
        }
        matches
    }

    fn at(&self, budget: BudgetLabel, draws: Draws) -> Option<Gain> {
        let found = self.by_budget.get(&budget)?;
        let of = |trace: &str| found.get(trace).into_iter().copied().collect::<Vec<_>>();
        gain(self.common_at.get(&budget)?.iter().map(|trace| of(trace)), draws)
    }

    fn over_all(&self, draws: Draws) -> Option<Gain> {
        let of = |trace: &str| self.by_budget.values().filter_map(|at| at.get(trace).copied()).collect();
        gain(self.common.iter().map(|trace| of(trace)), draws)
    }
}

/// The baseline's line for each session.
fn curves<'a>(cells: &Cells<'a>, pair: Pair<'_>, tokens: Tokens) -> BTreeMap<&'a str, Curve> {
    let mut points: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let sources: BTreeSet<&str> = [pair.baseline, "full"].into_iter().collect();
    for (place, policies) in cells {
        if place.split != pair.split || place.mode != pair.mode {
            continue;
        }
        for cell in sources.iter().filter_map(|source| policies.get(source)) {
            let kls = cell.values(|session| kl(session, tokens));
            for (trace, reads) in cell.values(reads_share) {
                if let Some(kl) = kls.get(trace) {
                    points.entry(trace).or_default().push((reads, *kl));
                }
            }
        }
    }
    // `full` alone is no result of the baseline.
    let replayed: BTreeSet<&str> = at_budgets(cells, pair, pair.baseline)
        .flat_map(|(_, cell)| cell.values(reads_share).into_keys())
        .collect();
    points.retain(|trace, _| replayed.contains(trace));
    points.into_iter().map(|(trace, points)| (trace, Curve::new(points))).collect()
}

/// Sums up sessions, each with its matches; those without one are left out. `None` when that leaves nothing.
fn gain(sessions: impl Iterator<Item = Vec<Match>>, draws: Draws) -> Option<Gain> {
    let (matched, left_out): (Vec<_>, Vec<_>) = sessions.partition(|matches| !matches.is_empty());
    let per_session = |of: fn(&Match) -> f64| -> Vec<f64> {
        let one = |matches: &Vec<Match>| mean(&matches.iter().map(of).collect::<Vec<_>>());
        matched.iter().filter_map(one).collect()
    };
    let differences = per_session(|found| found.policy_kl - found.baseline_kl);
    Some(Gain {
        sessions: matched.len(),
        left_out: left_out.len(),
        reads_share: mean(&per_session(|found| found.reads_share))?,
        policy_kl: mean(&per_session(|found| found.policy_kl))?,
        baseline_kl: mean(&per_session(|found| found.baseline_kl))?,
        difference: paired_bootstrap(&differences, draws.resamples, draws.seed),
        widest_gap: matched.iter().flatten().map(|found| found.gap).fold(0.0, f64::max),
    })
}

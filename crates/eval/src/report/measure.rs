//! From turns to sessions: what one replay measured, per token and as shares, and which replays stand side by side.
//!
//! Every measure is a sum over the turns of one session divided by another, and `None` where it would divide by zero.
//! Several results of one session under one name, such as the seeds of `random`, count as one: their mean.

use std::collections::BTreeMap;

use super::budget::BudgetLabel;
use super::result::{Mode, Scores, SessionResult, TurnResult};
use crate::stats::mean;

/// Which tokens a measure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tokens {
    All,
    Argument,
    Needle,
}

impl Tokens {
    pub(super) fn of(self, turn: &TurnResult) -> &Scores {
        match self {
            Self::All => &turn.scored,
            Self::Argument => &turn.argument,
            Self::Needle => &turn.needle,
        }
    }
}

/// What results must have in common to be summed up together, but for the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place<'a> {
    pub(super) split: &'a str,
    pub(super) mode: Mode,
    pub(super) budget: BudgetLabel,
}

/// The results of one policy in one place, by trajectory.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell<'a> {
    by_trace: BTreeMap<&'a str, Vec<&'a SessionResult>>,
}

/// All results, by place and policy.
pub(super) type Cells<'a> = BTreeMap<Place<'a>, BTreeMap<&'a str, Cell<'a>>>;

/// The policy that a name stands for: `random-3` is a seed of `random`, any other name is itself.
pub(super) fn family(policy: &str) -> &str {
    let seed = policy.strip_prefix("random-").filter(|seed| !seed.is_empty());
    if seed.is_some_and(|seed| seed.bytes().all(|byte| byte.is_ascii_digit())) { "random" } else { policy }
}

/// Sorts results into their cells.
pub(super) fn cells(sessions: &[SessionResult]) -> Cells<'_> {
    let mut cells = Cells::new();
    for session in sessions {
        let place = Place { split: &session.split, mode: session.mode, budget: session.budget };
        let cell = cells.entry(place).or_default().entry(family(&session.policy)).or_default();
        cell.by_trace.entry(&session.trace).or_default().push(session);
    }
    cells
}

impl<'a> Cell<'a> {
    /// How many trajectories.
    pub(super) fn sessions(&self) -> usize {
        self.by_trace.len()
    }

    /// Most results of any one trajectory.
    pub(super) fn seeds(&self) -> usize {
        self.by_trace.values().map(Vec::len).max().unwrap_or(0)
    }

    /// A measure by trajectory: the mean over the trajectory's results. Trajectories without it are left out.
    pub(super) fn values(&self, measure: impl Fn(&SessionResult) -> Option<f64>) -> BTreeMap<&'a str, f64> {
        let one = |results: &Vec<&SessionResult>| {
            let values: Vec<f64> = results.iter().filter_map(|result| measure(result)).collect();
            mean(&values)
        };
        self.by_trace.iter().filter_map(|(trace, results)| Some((*trace, one(results)?))).collect()
    }

    /// The mean of a measure over trajectories.
    pub(super) fn mean(&self, measure: impl Fn(&SessionResult) -> Option<f64>) -> Option<f64> {
        mean(&self.values(measure).into_values().collect::<Vec<_>>())
    }

    /// Every turn of every result.
    pub(super) fn turns(&self) -> impl Iterator<Item = &'a TurnResult> {
        self.by_trace.values().flatten().flat_map(|result| &result.turns)
    }
}

/// `part / whole`, where there is a whole.
pub(super) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn sum(session: &SessionResult, of: impl Fn(&TurnResult) -> f64) -> f64 {
    session.turns.iter().map(of).sum()
}

/// KL per scored token, in nats.
pub(super) fn kl(session: &SessionResult, tokens: Tokens) -> Option<f64> {
    per_token(session, tokens, |scores| scores.kl_sum)
}

/// Share of scored tokens at which the most likely token is the same.
pub(super) fn top1(session: &SessionResult, tokens: Tokens) -> Option<f64> {
    per_token(session, tokens, |scores| scores.top1_agree as f64)
}

/// What pruning adds to the negative log-likelihood of the recorded tokens, per token, in nats.
pub(super) fn delta_nll(session: &SessionResult, tokens: Tokens) -> Option<f64> {
    per_token(session, tokens, |scores| scores.nll_pruned_sum - scores.nll_full_sum)
}

fn per_token(session: &SessionResult, tokens: Tokens, of: impl Fn(&Scores) -> f64) -> Option<f64> {
    let scored = sum(session, |turn| tokens.of(turn).tokens as f64);
    ratio(sum(session, |turn| of(tokens.of(turn))), scored)
}

/// What the full cache's negative log-likelihood of the recorded tokens is, per token, in nats.
pub(super) fn nll_full(session: &SessionResult, tokens: Tokens) -> Option<f64> {
    per_token(session, tokens, |scores| scores.nll_full_sum)
}

/// Tokens of needles that are live as the answer begins, over all of them.
pub(super) fn needles_live(session: &SessionResult) -> Option<f64> {
    ratio(sum(session, |turn| turn.needle_live as f64), sum(session, |turn| turn.needle_tokens as f64))
}

/// Rows read while decoding, for scoring and to copy rows back, over the rows that the full cache reads.
pub(super) fn reads_share(session: &SessionResult) -> Option<f64> {
    let read = sum(session, |turn| turn.kv_rows_read + turn.scoring_rows + turn.copied as f64);
    ratio(read, sum(session, |turn| turn.kv_rows_full))
}

/// Most live positions at any time, over the length of the session.
pub(super) fn peak_live_share(session: &SessionResult) -> Option<f64> {
    let peak = session.turns.iter().map(|turn| turn.peak_live).max()?;
    ratio(peak as f64, session.tokens as f64)
}

/// A count of tokens that turns have, over the tokens of all prompts.
pub(super) fn prompt_share(session: &SessionResult, of: impl Fn(&TurnResult) -> u64) -> Option<f64> {
    let prompts = sum(session, |turn| turn.prompt_tokens as f64);
    ratio(sum(session, |turn| of(turn) as f64), prompts)
}

/// A total over the turns of a session.
pub(super) fn total(session: &SessionResult, of: impl Fn(&TurnResult) -> u64) -> Option<f64> {
    Some(sum(session, |turn| of(turn) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_names_of_random_are_seeds() {
        for name in ["random", "random-1", "random-23"] {
            assert_eq!(family(name), "random");
        }
        for name in ["random-", "random-x", "random-1a", "snapkv-2", "intent-query"] {
            assert_eq!(family(name), name);
        }
    }

    #[test]
    fn measures_without_a_whole_have_no_value() {
        let empty = SessionResult {
            trace: "t".into(),
            content: String::new(),
            split: "test".into(),
            policy: "random".into(),
            budget: BudgetLabel::Tokens(1),
            mode: Mode::OpenLoop,
            tokens: 0,
            turns: vec![TurnResult::default()],
        };
        assert_eq!(kl(&empty, Tokens::All), None);
        assert_eq!((reads_share(&empty), peak_live_share(&empty)), (None, None));
        assert_eq!(prompt_share(&empty, |turn| turn.prefix_hit.live), None);
    }
}

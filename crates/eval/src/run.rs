//! A whole evaluation: trajectories × policies × budgets, and how it is taken up again.

use std::collections::HashSet;

use hawser_common::retention::{InvalidRetention, Policy, Retention};
use serde_json::Value;
use thiserror::Error;

use crate::prepare::Prepared;
use crate::quality::Quality;
use crate::replay::{Reference, RequestOutcome, closed_loop, open_loop, reference};
use crate::report::{BudgetLabel, Mode, PrefixHit, Scores, SessionResult, TurnResult};
use crate::resume::content_digest;
use crate::session::{Engine, SessionError};

/// Options that a replay sets itself, or has no use for.
const NOT_REPLAYED: &[&str] = &["policy", "budget_tokens", "bounded", "adaptive_min_tokens"];

/// Stands for what is shipped: the default policy with its options.
const DEFAULT: &str = "default";

/// A policy under a name: `name@policy:option=value:…`, or without the name. A policy is plain, without the weights of
/// roles that are the default.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub name: String,
    /// Its budget is set by the evaluation.
    pub retention: Retention,
}

/// Why a candidate cannot be read.
#[derive(Debug, Error)]
pub enum CandidateError {
    #[error("{found:?} is no policy; use one of {}", Policy::ALL.iter().map(|p| p.name()).collect::<Vec<_>>().join(", "))]
    Policy { found: String },
    #[error("{found:?} is no option; write option=value")]
    Option { found: String },
    #[error("{found:?} has an empty name; write name@policy")]
    Name { found: String },
    #[error("option {option} is no part of a replay: budgets are given apart, one session runs at a time")]
    NotReplayed { option: String },
    #[error("option {option}: {source}")]
    Value { option: String, source: serde_json::Error },
    #[error(transparent)]
    Retention(#[from] InvalidRetention),
}

impl Candidate {
    /// Reads a candidate. Options are those of a session's retention; the trigger is 0 unless it is named.
    ///
    /// # Errors
    /// [`CandidateError`] names what is unknown or out of its bounds.
    pub fn parse(text: &str) -> Result<Self, CandidateError> {
        let (name, rest) = text.split_once('@').unwrap_or((text, text));
        if name.is_empty() {
            return Err(CandidateError::Name { found: text.to_owned() });
        }
        let mut parts = rest.split(':');
        let found = parts.next().unwrap_or_default();
        let mut retention = Retention { trigger_tokens: 0, ..Retention::default() };
        if found != DEFAULT {
            let unknown = || CandidateError::Policy { found: found.to_owned() };
            retention.policy = Policy::parse(found).ok_or_else(unknown)?;
            (retention.role_weight, retention.user_weight) = (0.0, 0.0);
            retention.mass_every = 1;
        }
        for part in parts {
            let Some((option, value)) = part.split_once('=') else {
                return Err(CandidateError::Option { found: part.to_owned() });
            };
            if NOT_REPLAYED.contains(&option) {
                return Err(CandidateError::NotReplayed { option: option.to_owned() });
            }
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            retention = with(&retention, option, value)
                .map_err(|source| CandidateError::Value { option: option.to_owned(), source })?;
        }
        retention.validate()?;
        Ok(Self { name: name.to_owned(), retention })
    }
}

/// One option changed by its name.
fn with(retention: &Retention, option: &str, value: Value) -> Result<Retention, serde_json::Error> {
    let mut object = serde_json::to_value(retention)?;
    object[option] = value;
    serde_json::from_value(object)
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Design {
    pub candidates: Vec<Candidate>,
    pub budgets: Vec<BudgetLabel>,
    pub modes: Vec<Mode>,
}

/// C of a budget: a share is one of what follows the protected prefix, which comes on top.
#[must_use]
pub fn budget_tokens(label: &BudgetLabel, trace: &Prepared) -> u32 {
    let protected = trace.protected as usize;
    match label {
        BudgetLabel::Tokens(tokens) => *tokens,
        BudgetLabel::Share { .. } => {
            let rest = label.tokens(trace.tokens.len() - protected);
            u32::try_from(protected + rest).unwrap_or(u32::MAX)
        }
    }
}

/// Replays that need not be repeated, by what was replayed: see [`content_digest`].
#[derive(Debug, Default)]
pub struct Done(HashSet<(String, String, BudgetLabel, Mode)>);

impl Done {
    #[must_use]
    pub fn new(results: &[SessionResult]) -> Self {
        let key = |r: &SessionResult| (r.content.clone(), r.policy.clone(), r.budget, r.mode);
        Self(results.iter().map(key).collect())
    }

    fn contains(&self, content: &str, policy: &str, budget: BudgetLabel, mode: Mode) -> bool {
        self.0.contains(&(content.to_owned(), policy.to_owned(), budget, mode))
    }
}

/// Replays one trajectory under all candidates and budgets that are not done. `each` gets the result of each replay
/// as it ends, so that nothing later can lose it, and `None` for each that was done before.
///
/// # Errors
/// [`SessionError`] where the pool is too small or a step fails, and the first error of `each`.
pub fn evaluate<E: From<SessionError>>(
    engine: &mut Engine,
    trace: &Prepared,
    design: &Design,
    done: &Done,
    each: &mut dyn FnMut(Option<SessionResult>) -> Result<(), E>,
) -> Result<(), E> {
    let content = content_digest(trace);
    let mut expected: Option<Reference> = None;
    for mode in &design.modes {
        for budget in &design.budgets {
            for candidate in &design.candidates {
                if done.contains(&content, &candidate.name, *budget, *mode) {
                    each(None)?;
                    continue;
                }
                let expected = match &expected {
                    Some(expected) => expected,
                    None => expected.insert(reference(engine, trace)?),
                };
                let budget_tokens = budget_tokens(budget, trace);
                let retention = Retention { budget_tokens, ..candidate.retention.clone() };
                let outcomes = match mode {
                    Mode::ClosedLoop => closed_loop(engine, trace, &retention, expected)?,
                    Mode::OpenLoop => open_loop(engine, trace, &retention, expected)?,
                };
                each(Some(SessionResult {
                    trace: trace.id.clone(),
                    content: content.clone(),
                    split: trace.split.clone(),
                    policy: candidate.name.clone(),
                    budget: *budget,
                    mode: *mode,
                    tokens: trace.tokens.len(),
                    turns: outcomes.iter().map(turn).collect(),
                }))?;
            }
        }
    }
    Ok(())
}

fn scores(quality: &Quality) -> Scores {
    Scores {
        tokens: quality.tokens,
        kl_sum: quality.kl,
        top1_agree: quality.agreeing,
        nll_full_sum: quality.nll_full,
        nll_pruned_sum: quality.nll_pruned,
    }
}

fn turn(outcome: &RequestOutcome) -> TurnResult {
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let (live, dead) = (outcome.hit_live as u64, outcome.hit_dead as u64);
    TurnResult {
        scored: scores(&outcome.all),
        argument: scores(&outcome.copied),
        needle: scores(&outcome.needle),
        needle_tokens: outcome.needle_tokens as u64,
        needle_live: outcome.needle_live as u64,
        kv_rows_read: outcome.rows_read as f64,
        kv_rows_full: outcome.rows_full as f64,
        scoring_rows: outcome.rows_scored as f64,
        events: outcome.events,
        budget_overflow: u32::from(outcome.overflow),
        revived: outcome.revived as u64,
        refilled: outcome.refill_rows as u64,
        copied: outcome.copied_rows as u64,
        evicted: (outcome.evicted + outcome.exchanged) as u64,
        freed: outcome.freed as u64,
        peak_live: outcome.peak_live as u64,
        prompt_tokens: outcome.prompt as u64,
        prefix_hit: PrefixHit { live, dead, miss: outcome.prompt as u64 - live - dead },
        score_us: micros(outcome.score),
        prefill_us: micros(outcome.prefill),
        decode_us: micros(outcome.decode),
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::retention::Aggregation;

    use super::*;

    #[test]
    fn candidates_have_names_and_options() {
        let plain = Candidate::parse("h2o").unwrap();
        assert_eq!((plain.name.as_str(), plain.retention.policy), ("h2o", Policy::H2o));
        assert_eq!((plain.retention.role_weight, plain.retention.user_weight), (0.0, 0.0));
        let shipped = Retention { trigger_tokens: 0, ..Retention::default() };
        assert_eq!(Candidate::parse("default").unwrap().retention, shipped);
        let named =
            Candidate::parse("ours@answer-rows:aggregation=max:role_weight=2.5:span_cap=false").unwrap();
        assert_eq!(named.name, "ours");
        assert_eq!(named.retention.aggregation, Aggregation::Max);
        assert_eq!((named.retention.role_weight, named.retention.span_cap), (2.5, false));
        for (text, says) in [
            ("lru", "\"lru\" is no policy"),
            ("h2o:recent_tokens", "write option=value"),
            ("h2o:bounded=true", "bounded is no part of a replay"),
            ("@h2o", "empty name"),
            ("h2o:colour=red", "unknown field `colour`"),
            ("snapkv:pool_positions=4", "pool_positions is 4"),
        ] {
            let error = Candidate::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

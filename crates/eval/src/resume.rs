//! Whether a file of results can be added to: by what was replayed, never by names alone.
//!
//! Owns the digest of a session's content and the comparison of a run with the one that wrote a file. Promises that
//! results which are added to a file are comparable with all that are in it. Reads and writes no files.

use std::collections::BTreeMap;

use hawser_common::retention::Retention;
use hawser_kv::retention::Origin;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::prepare::Prepared;
use crate::report::{RunInfo, RunResult};

/// Why a run cannot be added to a file of results.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResumeError {
    #[error(
        "it is of the model {held} (digest {held_digest}), and this run uses {asked} (digest {asked_digest})"
    )]
    Model { held: String, held_digest: String, asked: String, asked_digest: String },
    #[error("its KV rows are {held}, and those of this run {asked}")]
    KvType { held: String, asked: String },
    #[error(
        "its policy {policy:?} has {option}={held}, and that of this run {option}={asked}; give the policy another \
         name (name@policy:option=value)"
    )]
    Policy { policy: String, option: String, held: String, asked: String },
    #[error(
        "its session {trace:?} ({held_tokens} tokens) has another content than this run's ({asked_tokens} tokens): \
         the trace, its split, --tokens or --schemas changed"
    )]
    Content { trace: String, held_tokens: usize, asked_tokens: usize },
    #[error(
        "{others} of its {held} sessions, such as {trace:?}, are not among the {asked} of this run: other --traces, \
         --split or --limit"
    )]
    Foreign { trace: String, others: usize, held: usize, asked: usize },
}

/// SHA-256, in hexadecimal, of everything in a session that its numbers depend on: tokens, who wrote each and in which
/// turn, the protected prefix, where requests, spans and answers lie, which tokens count as copied, and the split.
/// Its id is no part of it.
#[must_use]
pub fn content_digest(session: &Prepared) -> String {
    let mut hash = Sha256::new();
    let mut number = |number: usize| hash.update((number as u64).to_le_bytes());
    number(session.tokens.len());
    session.tokens.iter().for_each(|&token| number(token as usize));
    number(session.marks.runs().count());
    for (range, origin, turn) in session.marks.runs() {
        [range.start, range.end, origin_number(origin), turn].into_iter().for_each(|n| number(n as usize));
    }
    number(session.protected as usize);
    number(session.requests.len());
    for request in &session.requests {
        let span = request.span.start as usize..request.span.end as usize;
        for range in [&request.prompt, &span, &request.answer] {
            number(range.start);
            number(range.end);
        }
        number(request.copied.len());
        request.copied.iter().for_each(|&copied| number(usize::from(copied)));
    }
    hash.update(session.split.as_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn origin_number(origin: Origin) -> u32 {
    match origin {
        Origin::System => 0,
        Origin::User => 1,
        Origin::Assistant => 2,
        Origin::Tool => 3,
        Origin::Template => 4,
    }
}

/// The results of a file, ready for those of `run` over `sessions`. Policies, budgets and sessions may be added; what
/// is there already must be what the run would measure.
///
/// # Errors
/// [`ResumeError`] names the first difference.
pub fn resume(held: RunResult, run: RunInfo, sessions: &[Prepared]) -> Result<RunResult, ResumeError> {
    if held.run.model_digest != run.model_digest {
        return Err(ResumeError::Model {
            held: held.run.model,
            held_digest: short(&held.run.model_digest),
            asked: run.model,
            asked_digest: short(&run.model_digest),
        });
    }
    if held.run.kv_type != run.kv_type {
        return Err(ResumeError::KvType { held: held.run.kv_type, asked: run.kv_type });
    }
    for (policy, asked) in &run.policies {
        if let Some(held) = held.run.policies.get(policy).filter(|held| *held != asked) {
            return Err(differing(policy, held, asked));
        }
    }
    check_sessions(&held, sessions)?;
    let mut policies = held.run.policies.clone();
    policies.extend(run.policies);
    let run = RunInfo { seed: run.seed, policies, ..held.run };
    Ok(RunResult { run, ..held })
}

fn check_sessions(held: &RunResult, sessions: &[Prepared]) -> Result<(), ResumeError> {
    let asked: BTreeMap<&str, (String, usize)> = sessions
        .iter()
        .map(|session| (session.id.as_str(), (content_digest(session), session.tokens.len())))
        .collect();
    let held: BTreeMap<&str, (&str, usize)> = held
        .sessions
        .iter()
        .map(|result| (result.trace.as_str(), (result.content.as_str(), result.tokens)))
        .collect();
    // A session that changed says more than one that is missing.
    for (trace, (content, tokens)) in &held {
        if let Some((_, asked_tokens)) = asked.get(trace).filter(|(digest, _)| digest != content) {
            let (trace, held_tokens, asked_tokens) = ((*trace).to_owned(), *tokens, *asked_tokens);
            return Err(ResumeError::Content { trace, held_tokens, asked_tokens });
        }
    }
    let mut others = held.keys().filter(|trace| !asked.contains_key(*trace));
    match others.next() {
        None => Ok(()),
        Some(trace) => Err(ResumeError::Foreign {
            trace: (*trace).to_owned(),
            others: 1 + others.count(),
            held: held.len(),
            asked: asked.len(),
        }),
    }
}

/// The first option in which two policies differ, in order of names.
fn differing(policy: &str, held: &Retention, asked: &Retention) -> ResumeError {
    let options = |retention: &Retention| match serde_json::to_value(retention) {
        Ok(Value::Object(options)) => options,
        _ => serde_json::Map::new(),
    };
    let (held, asked) = (options(held), options(asked));
    let shown = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "none".to_owned(),
    };
    let option = held.iter().find(|(option, value)| asked.get(*option) != Some(value)).map(|(name, _)| name);
    let option = option.cloned().unwrap_or_default();
    ResumeError::Policy {
        policy: policy.to_owned(),
        held: shown(held.get(&option)),
        asked: shown(asked.get(&option)),
        option,
    }
}

/// As much of a digest as tells two apart.
fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use hawser_kv::retention::Marks;

    use super::*;
    use crate::prepare::Request;
    use crate::report::{BudgetLabel, Mode, SessionResult};

    fn session(id: &str) -> Prepared {
        let mut marks = Marks::default();
        marks.extend_to(2, Origin::System, 0);
        marks.extend_to(6, Origin::User, 0);
        marks.extend_to(8, Origin::Assistant, 0);
        let request = Request {
            prompt: 0..6,
            span: 2..6,
            answer: 6..8,
            copied: vec![true, false],
            needles: Vec::new(),
        };
        Prepared {
            id: id.to_owned(),
            split: "dev".to_owned(),
            tokens: (10..18).collect(),
            marks,
            protected: 2,
            requests: vec![request],
        }
    }

    fn run() -> RunInfo {
        let policies = [("h2o".to_owned(), Retention { role_weight: 2.0, ..Retention::default() })];
        RunInfo {
            model: "tiny".into(),
            model_digest: "0123456789abcdef".into(),
            kv_type: "f16".into(),
            policies: policies.into_iter().collect(),
            seed: 1,
            ..RunInfo::default()
        }
    }

    fn results(sessions: &[Prepared]) -> RunResult {
        let one = |session: &Prepared| SessionResult {
            trace: session.id.clone(),
            content: content_digest(session),
            split: session.split.clone(),
            policy: "h2o".into(),
            budget: BudgetLabel::Tokens(4),
            mode: Mode::ClosedLoop,
            tokens: session.tokens.len(),
            turns: Vec::new(),
        };
        RunResult::new(run(), sessions.iter().map(one).collect())
    }

    #[test]
    fn every_part_of_a_sessions_content_counts_and_its_name_does_not() {
        let plain = content_digest(&session("a"));
        assert_eq!((plain.len(), &plain), (64, &content_digest(&session("b"))));
        let changes: [fn(&mut Prepared); 9] = [
            |session| session.tokens[3] = 99,
            |session| session.tokens.push(99),
            |session| session.split = "test".to_owned(),
            |session| session.protected = 1,
            |session| session.requests[0].copied[1] = true,
            |session| session.requests[0].span = 3..6,
            |session| session.requests[0].answer = 6..7,
            |session| session.marks.extend_to(9, Origin::Assistant, 0),
            |session| {
                session.marks = Marks::default();
                session.marks.extend_to(2, Origin::System, 0);
                session.marks.extend_to(6, Origin::Tool, 0);
                session.marks.extend_to(8, Origin::Assistant, 0);
            },
        ];
        let mut seen = vec![plain];
        for (index, change) in changes.into_iter().enumerate() {
            let mut other = session("a");
            change(&mut other);
            let digest = content_digest(&other);
            assert!(!seen.contains(&digest), "change {index} changes nothing");
            seen.push(digest);
        }
    }

    #[test]
    fn the_same_run_goes_on_and_sessions_policies_and_the_seed_may_be_new() {
        let held = results(&[session("a")]);
        assert_eq!(resume(held.clone(), run(), &[session("a")]).unwrap(), held);
        let mut more = run();
        more.policies.insert("full".into(), Retention::default());
        more.policies.remove("h2o");
        more.seed = 7;
        let found = resume(held.clone(), more, &[session("a"), session("b")]).unwrap();
        assert_eq!(found.sessions, held.sessions);
        assert_eq!(found.run.policies.keys().collect::<Vec<_>>(), ["full", "h2o"]);
        assert_eq!((found.run.seed, &found.run.model), (7, &held.run.model));
    }

    #[test]
    fn what_differs_is_named() {
        let held = || results(&[session("a"), session("b")]);
        let all = [session("a"), session("b")];
        let refused = |run: RunInfo, sessions: &[Prepared]| resume(held(), run, sessions).unwrap_err();
        let model = RunInfo { model: "other".into(), model_digest: "ffff".into(), ..run() };
        let error = refused(model, &all).to_string();
        assert!(error.contains("tiny (digest 0123456789ab)") && error.contains("other"), "{error}");
        let rows = RunInfo { kv_type: "f32".into(), ..run() };
        assert!(matches!(refused(rows, &all), ResumeError::KvType { .. }));
        let mut policy = run();
        policy.policies.insert("h2o".into(), Retention { role_weight: 8.5, ..Retention::default() });
        let error = refused(policy, &all).to_string();
        assert!(error.contains("role_weight=2.0") && error.contains("role_weight=8.5"), "{error}");
        // Of equal length and name, and still another session.
        let mut changed = all.clone();
        changed[1].tokens[4] += 1;
        let content = ResumeError::Content { trace: "b".into(), held_tokens: 8, asked_tokens: 8 };
        assert_eq!(refused(run(), &changed), content);
        let foreign = ResumeError::Foreign { trace: "b".into(), others: 1, held: 2, asked: 2 };
        assert_eq!(refused(run(), &[session("a"), session("c")]), foreign);
        let fewer = ResumeError::Foreign { trace: "b".into(), others: 1, held: 2, asked: 1 };
        assert_eq!(refused(run(), &all[..1]), fewer);
    }
}

//! `hawser eval retention --only-hits`: how much of its prompts a session finds again, with nothing computed.
//!
//! Drives the scheduler that serves (admission, slot maps, prunes, prefix tree) over recorded sessions. The recorded
//! answers stand for the model, and a hash of the position for a policy's scores: so it is not shown what a policy
//! keeps, only how much is found again, which does not depend on it (but for `threshold`). Opens no model.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use hawser_common::clock::Tick;
use hawser_common::retention::{Policy, Retention};
use hawser_common::{Position, SessionId, SessionKey, TenantId};
use hawser_eval::prepare::{Prepared, Request};
use hawser_eval::report::BudgetLabel;
use hawser_eval::run::{Design, budget_tokens};
use hawser_worker::WorkerOptions;
use hawser_worker::scheduler::{Keep, Limits, Scheduler, SequenceId, Submission, Verdict};
use serde::Serialize;

use crate::console::{count, counted};
use crate::table::{Align, Table};

/// Sums over the turns of one session or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// Tokens of all prompts.
    pub prompt: u64,
    /// Of them, found with a live row.
    pub live: u64,
    /// Of them, found and evicted before: skipped, without a row.
    pub dead: u64,
    /// Positions evicted.
    pub evicted: u64,
    /// Most live positions of one session.
    pub peak_live: u64,
}

/// One session under one policy and budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionHits {
    pub trace: String,
    pub policy: String,
    pub budget: BudgetLabel,
    #[serde(flatten)]
    pub hits: Hits,
    /// Tokens found again when nothing is ever evicted.
    pub full: u64,
}

impl Hits {
    fn found(self) -> u64 {
        self.live + self.dead
    }

    fn add(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.live += other.live;
        self.dead += other.dead;
        self.evicted += other.evicted;
        self.peak_live = self.peak_live.max(other.peak_live);
    }
}

/// Replays all sessions under all candidates and budgets, each beside the replay that keeps everything.
///
/// # Errors
/// A session that the pool cannot hold.
pub fn replay_all(traces: &[Prepared], design: &Design, slots: usize) -> anyhow::Result<Vec<SessionHits>> {
    let keeps_all = |_: &Prepared| Retention { policy: Policy::Full, ..Retention::default() };
    let full = replay(traces, &keeps_all, slots)?;
    let mut all = Vec::new();
    for budget in &design.budgets {
        for candidate in &design.candidates {
            let retention = |trace: &Prepared| Retention {
                budget_tokens: budget_tokens(budget, trace),
                ..candidate.retention.clone()
            };
            let hits = replay(traces, &retention, slots)?;
            for ((trace, hits), full) in traces.iter().zip(hits).zip(&full) {
                let (trace, policy, budget) = (trace.id.clone(), candidate.name.clone(), *budget);
                all.push(SessionHits { trace, policy, budget, hits, full: full.found() });
            }
        }
    }
    Ok(all)
}

/// All sessions, one after another, on one fresh scheduler: rows that they share are shared as in service.
fn replay(
    traces: &[Prepared],
    retention: &dyn Fn(&Prepared) -> Retention,
    slots: usize,
) -> anyhow::Result<Vec<Hits>> {
    let options = WorkerOptions::default();
    let limits = Limits {
        step_tokens: options.step_tokens,
        mixed_tokens: options.mixed_tokens,
        max_running: options.max_running,
        max_waiting: options.max_waiting,
        share_prefixes: options.share_prefixes,
    };
    let mut play = Play { scheduler: Scheduler::new(limits, slots, 0), steps: 0 };
    let mut all = Vec::with_capacity(traces.len());
    for (index, trace) in traces.iter().enumerate() {
        let session = SessionId::parse(&format!("s-{index}"))?;
        let key = SessionKey { tenant: TenantId::single(), session };
        let mut hits = Hits::default();
        for request in &trace.requests {
            let turn = play.turn(trace, request, &key, retention(trace));
            hits.add(turn.with_context(|| format!("session {}", trace.id))?);
        }
        play.scheduler.close(&key);
        all.push(hits);
    }
    Ok(all)
}

struct Play {
    scheduler: Scheduler,
    /// Stands for the time.
    steps: u64,
}

impl Play {
    fn turn(
        &mut self,
        trace: &Prepared,
        request: &Request,
        key: &SessionKey,
        retention: Retention,
    ) -> anyhow::Result<Hits> {
        let answer = &trace.tokens[request.answer.clone()];
        let mut marks = trace.marks.clone();
        marks.truncate(u32::try_from(request.prompt.end).context("the session is too long")?);
        let (protected, span) = (trace.protected, request.span.clone());
        let id = SequenceId(self.steps);
        self.scheduler.submit(
            Submission {
                id,
                session: Some(key.clone()),
                namespace: TenantId::single(),
                prompt: trace.tokens[..request.prompt.end].to_vec(),
                begun: Vec::new(),
                max_new: answer.len(),
                deadline: None,
                keep: Keep { retention, marks, protected, span, ..Keep::default() },
            },
            self.now(),
        )?;
        let mut left = answer.iter();
        loop {
            self.steps += 1;
            let now = self.now();
            let plan = self.scheduler.plan(now);
            let [entry] = &plan.entries[..] else {
                anyhow::bail!("the pool is too small; give more --slots");
            };
            if entry.prune {
                let scoring = self.scheduler.scoring(id);
                let scores = scoring.map(|scoring| scoring.positions.iter().map(score).collect());
                self.scheduler.settle(id, scores);
            }
            let Some(&token) = left.as_slice().first().filter(|_| entry.sample) else { continue };
            left.next();
            if left.as_slice().is_empty() {
                let hits = self.hits(id).context("a turn that ran was admitted")?;
                self.scheduler.advance(id, token, Verdict::Finish, now);
                return Ok(hits);
            }
            self.scheduler.advance(id, token, Verdict::Continue, now);
        }
    }

    fn hits(&self, id: SequenceId) -> Option<Hits> {
        let (admission, kept) = (self.scheduler.admission(id)?, self.scheduler.kept(id));
        Some(Hits {
            prompt: admission.prompt as u64,
            live: (admission.reused - admission.dead) as u64,
            dead: admission.dead as u64,
            evicted: kept.evicted as u64,
            peak_live: kept.peak_live as u64,
        })
    }

    fn now(&self) -> Tick {
        Tick(Duration::from_micros(self.steps))
    }
}

/// Any order of positions that is not theirs: a multiplicative hash.
fn score(position: &Position) -> i64 {
    i64::from(position.0.wrapping_mul(0x9e37_79b1) >> 8)
}

/// The report: a table for each budget, and how to read it.
pub fn report(results: &[SessionHits]) -> String {
    let mut budgets: BTreeMap<std::cmp::Reverse<BudgetLabel>, Vec<&SessionHits>> = BTreeMap::new();
    for result in results {
        budgets.entry(std::cmp::Reverse(result.budget)).or_default().push(result);
    }
    let tables = budgets.into_iter().map(|(budget, results)| {
        let sessions = results.iter().filter(|result| result.policy == results[0].policy).count();
        format!("budget {}, {}\n{}\n", budget.0, counted(sessions as u64, "session"), table(&results))
    });
    let notes = "\
HITS: tokens of prompts that were found again, live or dead (evicted, and skipped), over all tokens of prompts. OF FULL:
the same over those that are found when nothing is ever evicted; LEAST OF FULL: in the session with the lowest share.
No model was run: scores are hashes of positions.";
    tables.collect::<Vec<_>>().join("\n") + "\n" + notes
}

fn table(results: &[&SessionHits]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("HITS", right),
        ("LIVE", right),
        ("DEAD", right),
        ("OF FULL", right),
        ("LEAST OF FULL", right),
        ("EVICTED", right),
        ("PEAK LIVE", right),
    ]);
    let mut policies: Vec<&str> = Vec::new();
    for result in results {
        if !policies.contains(&result.policy.as_str()) {
            policies.push(&result.policy);
        }
    }
    for policy in policies {
        let (mut sum, mut full, mut least) = (Hits::default(), 0, f64::INFINITY);
        for result in results.iter().filter(|result| result.policy == policy) {
            sum.add(result.hits);
            full += result.full;
            least = least.min(share(result.hits.found(), result.full));
        }
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        table.row(vec![
            policy.to_owned(),
            percent(share(sum.found(), sum.prompt)),
            percent(share(sum.live, sum.prompt)),
            percent(share(sum.dead, sum.prompt)),
            percent(share(sum.found(), full)),
            percent(least),
            count(sum.evicted),
            count(sum.peak_live),
        ]);
    }
    table
}

/// `part / whole`; where there is nothing to find, everything is found.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use hawser_eval::run::Candidate;

    use super::*;

    /// Sessions of turns of 40 tokens, 8 of them the answer, behind a system message that all have.
    fn traces(sessions: u32, turns: u32) -> Vec<Prepared> {
        let token = |session: u32, at: u32| if at < 16 { at } else { 100 + session * 10_000 + at };
        let one = |session: u32| Prepared {
            id: session.to_string(),
            split: "test".into(),
            tokens: (0..turns * 40).map(|at| token(session, at)).collect(),
            marks: Default::default(),
            protected: 16,
            requests: (0..turns)
                .map(|turn| {
                    let start = turn * 40;
                    let span = start.max(16)..start + 32;
                    let (prompt, answer) =
                        (start as usize..start as usize + 32, start as usize + 32..start as usize + 40);
                    Request { prompt, span, answer, copied: vec![false; 8], needles: Vec::new() }
                })
                .collect(),
        };
        (0..sessions).map(one).collect()
    }

    fn design(policies: &[&str]) -> Design {
        let candidates = policies.iter().map(|text| Candidate::parse(text).unwrap()).collect();
        Design { candidates, budgets: vec![BudgetLabel::Tokens(64)], modes: Vec::new() }
    }

    #[test]
    fn a_session_that_only_grows_finds_all_of_it_again_under_every_policy() {
        let traces = traces(3, 8);
        let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        let results = replay_all(&traces, &design(&names), 4_096).unwrap();
        assert_eq!(results.len(), names.len() * traces.len());
        for result in &results {
            // All but the last answer's last token, whose row is computed with the next turn; the second session finds
            // the system message of the first.
            let own: u64 = (1..8).map(|turn| turn * 40 - 1).sum();
            let shared = if result.trace == "0" { 0 } else { 16 };
            assert_eq!(result.full, own + shared, "{result:?}");
            assert_eq!(result.hits.found(), result.full, "{result:?}");
            let prunes = result.policy != "full";
            assert_eq!((result.hits.dead > 0, result.hits.evicted > 0), (prunes, prunes), "{result:?}");
            assert!(result.hits.peak_live <= if prunes { 64 + 40 + 8 } else { 320 }, "{result:?}");
        }
        let shown = report(&results);
        let row = shown.lines().find(|line| line.starts_with("h2o ")).unwrap();
        assert_eq!(row.matches("100.00 %").count(), 2, "{shown}");
    }

    #[test]
    fn a_prompt_that_is_another_finds_less() {
        let mut traces = traces(1, 4);
        let same = replay_all(&traces, &design(&["h2o"]), 4_096).unwrap();
        // What the session has of its third turn is not what the fourth begins with.
        traces[0].requests[2].answer = 112..115;
        let other = replay_all(&traces, &design(&["h2o"]), 4_096).unwrap();
        assert!(other[0].hits.found() < same[0].hits.found());
        assert!(replay_all(&traces, &design(&["h2o"]), 64).is_err(), "the pool is too small");
    }
}

//! One trajectory under one policy, teacher-forced, with the rows that a serving group would compute.
//!
//! Closed loop: rows are computed over what earlier prunes left, errors add up as they do in service. Open loop: rows
//! are those of the replay that keeps everything, and only what is seen differs; this shows the choice alone.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::retention::{Policy, Retention};
use hawser_kv::retention::Marks;
use hawser_model::executor::LogitRows;

use crate::prepare::{Prepared, Request};
use crate::quality::{Quality, distribution};
use crate::session::{Engine, Pruned, Session, SessionError};

/// What one request cost and how far its answer's distributions are from the full cache's.
#[derive(Clone, Debug, Default)]
pub struct RequestOutcome {
    pub all: Quality,
    /// The same over copied argument values.
    pub copied: Quality,
    /// The same over needles.
    pub needle: Quality,
    /// Tokens of needles where they stand in earlier turns, and those of them that are live as the answer begins.
    pub needle_tokens: usize,
    pub needle_live: usize,
    /// Sum over decode steps of live positions.
    pub rows_read: u64,
    /// The same with nothing evicted.
    pub rows_full: u64,
    /// What scoring read, in rows: a key is half a row.
    pub rows_scored: u64,
    pub peak_live: usize,
    pub evicted: usize,
    pub freed: usize,
    /// Positions that came back, those that went for them, and rows copied out of the archive.
    pub revived: usize,
    pub exchanged: usize,
    pub copied_rows: usize,
    /// Positions that came back and were computed for it, and rows computed in all for that.
    pub refilled: usize,
    pub refill_rows: usize,
    /// Prompt tokens in all, those that were there and live, there and dead.
    pub prompt: usize,
    pub hit_live: usize,
    pub hit_dead: usize,
    pub overflow: bool,
    /// Prunes.
    pub events: u32,
    pub score: Duration,
    pub prefill: Duration,
    pub decode: Duration,
}

/// Log-probabilities of the full cache, one row per answer token: `[requests][tokens][vocabulary]`.
pub type Reference = Vec<Vec<Vec<f32>>>;

/// Replays a trajectory with everything kept and returns its distributions.
///
/// # Errors
/// [`SessionError`] where the pool is too small or a step fails.
pub fn reference(engine: &mut Engine, trace: &Prepared) -> Result<Reference, SessionError> {
    let full = Retention { policy: Policy::Full, ..Retention::default() };
    let mut session = engine.open(full, trace.protected);
    let mut all = Vec::with_capacity(trace.requests.len());
    let ran = trace.requests.iter().try_for_each(|request| {
        let mut rows = Vec::with_capacity(request.answer.len());
        run_request(engine, &mut session, trace, request, &mut |row| rows.push(distribution(row)))?;
        all.push(rows);
        Ok(())
    });
    engine.close(session);
    ran.map(|()| all)
}

/// Compares distributions with the reference's, one answer token after another.
struct Comparison<'a> {
    trace: &'a Prepared,
    request: &'a Request,
    reference: &'a [Vec<f32>],
    all: Quality,
    copied: Quality,
    needle: Quality,
    next: usize,
}

impl<'a> Comparison<'a> {
    fn new(trace: &'a Prepared, request: &'a Request, reference: &'a [Vec<f32>]) -> Self {
        let (all, copied, needle) = (Quality::default(), Quality::default(), Quality::default());
        Self { trace, request, reference, all, copied, needle, next: 0 }
    }

    fn add(&mut self, logits: &[f32]) {
        let token = self.trace.tokens[self.request.answer.start + self.next] as usize;
        let one = Quality::of(&self.reference[self.next], &distribution(logits), token);
        self.all.add(&one);
        if self.request.copied[self.next] {
            self.copied.add(&one);
        }
        if self.request.needles.iter().any(|needle| needle.answer.contains(&self.next)) {
            self.needle.add(&one);
        }
        self.next += 1;
    }
}

/// Replays a trajectory under a policy and compares it with the reference.
///
/// # Errors
/// [`SessionError`] where the pool is too small or a step fails.
pub fn closed_loop(
    engine: &mut Engine,
    trace: &Prepared,
    retention: &Retention,
    reference: &Reference,
) -> Result<Vec<RequestOutcome>, SessionError> {
    let mut session = engine.open(retention.clone(), trace.protected);
    let mut outcomes = Vec::with_capacity(trace.requests.len());
    let ran = trace.requests.iter().zip(reference).try_for_each(|(request, reference)| {
        let mut seen = Comparison::new(trace, request, reference);
        let costs = run_request(engine, &mut session, trace, request, &mut |row| seen.add(row))?;
        outcomes.push(RequestOutcome { all: seen.all, copied: seen.copied, needle: seen.needle, ..costs });
        Ok(())
    });
    engine.close(session);
    ran.map(|()| outcomes)
}

/// The same over rows that have seen everything: only what the answers see is pruned.
///
/// # Errors
/// [`SessionError`] where the pool is too small or a step fails.
pub fn open_loop(
    engine: &mut Engine,
    trace: &Prepared,
    retention: &Retention,
    reference: &Reference,
) -> Result<Vec<RequestOutcome>, SessionError> {
    let mut whole = engine.open(retention.clone(), trace.protected);
    let mut session = Engine::open_beside(&whole);
    let mut outcomes = Vec::with_capacity(trace.requests.len());
    let ran = trace.requests.iter().zip(reference).try_for_each(|(request, reference)| {
        let mut seen = Comparison::new(trace, request, reference);
        let mut outcome = before(&session, request);
        whole.marks = marks_to(trace, request.prompt.end);
        session.marks = whole.marks.clone();
        let prompt = &trace.tokens[request.prompt.clone()];
        let logits = engine.run(&mut whole, prompt, &request.span, LogitRows::Last)?;
        logits.last().into_iter().for_each(|logits| seen.add(logits.row(0)));
        engine.end_span(&whole);
        engine.share_new(&mut session, &whole);
        outcome.peak_live = session.map.live().len();
        let pruned = engine.prune(&mut session, &request.span)?;
        let answer = &trace.tokens[request.answer.clone()];
        count(&mut outcome, &session, pruned, request);
        let logits = engine.run_apart(&session, answer)?;
        (0..answer.len() - 1).for_each(|row| seen.add(logits.row(row)));
        whole.marks = marks_to(trace, request.answer.end);
        engine.run(&mut whole, answer, &(0..0), LogitRows::None)?;
        engine.share_new(&mut session, &whole);
        outcomes.push(RequestOutcome { all: seen.all, copied: seen.copied, needle: seen.needle, ..outcome });
        Ok(())
    });
    engine.close(session);
    engine.close(whole);
    ran.map(|()| outcomes)
}

fn marks_to(trace: &Prepared, end: usize) -> Marks {
    let mut marks = trace.marks.clone();
    marks.truncate(u32::try_from(end).expect("positions are 32-bit"));
    marks
}

/// What is known before a request runs.
fn before(session: &Session, request: &Request) -> RequestOutcome {
    let (live, len) = (session.map.live().len(), session.map.len());
    RequestOutcome {
        prompt: request.prompt.end,
        hit_live: live,
        hit_dead: len - live,
        ..RequestOutcome::default()
    }
}

/// What a prune did, and what the answer reads after it.
fn count(outcome: &mut RequestOutcome, session: &Session, pruned: Option<Pruned>, request: &Request) {
    for needle in &request.needles {
        let (tokens, live) = needle.live(&session.map);
        outcome.needle_tokens += tokens;
        outcome.needle_live += live;
    }
    if let Some(pruned) = pruned {
        outcome.events = 1;
        outcome.evicted = pruned.selection.evicted.len();
        outcome.freed = pruned.freed;
        outcome.overflow = pruned.event.overflow;
        if !pruned.scores.is_empty() {
            outcome.rows_scored = (pruned.event.candidates.len() / 2) as u64;
        }
    }
    for step in 1..=request.answer.len() {
        outcome.rows_read += (session.map.live().len() + step) as u64;
        outcome.rows_full += (session.map.len() + step) as u64;
    }
}

/// Prefill, prune, answer. `seen` gets the logits that predict each answer token, in order.
fn run_request(
    engine: &mut Engine,
    session: &mut Session,
    trace: &Prepared,
    request: &Request,
    seen: &mut dyn FnMut(&[f32]),
) -> Result<RequestOutcome, SessionError> {
    let clock = Clock::system();
    let started = clock.now();
    let mut outcome = before(session, request);
    session.marks = marks_to(trace, request.prompt.end);
    let logits =
        engine.run(session, &trace.tokens[request.prompt.clone()], &request.span, LogitRows::Last)?;
    if let Some(last) = logits.last() {
        seen(last.row(0));
    }
    engine.end_span(session);
    outcome.peak_live = session.map.live().len();
    let prefilled = clock.now();
    let pruned = engine.prune(session, &request.span)?;
    let revived = engine.revive(session, &request.span)?;
    let scored = clock.now();
    let answer = &trace.tokens[request.answer.clone()];
    count(&mut outcome, session, pruned, request);
    if let Some(revived) = revived {
        outcome.revived = revived.exchanged.revived.len();
        outcome.exchanged = revived.exchanged.evicted.len();
        outcome.copied_rows = revived.copied;
        (outcome.refilled, outcome.refill_rows) = (revived.refilled, revived.computed);
        outcome.rows_scored += (revived.scored / 2) as u64;
    }
    session.marks = marks_to(trace, request.answer.end);
    outcome.score = scored.since(prefilled);
    outcome.prefill = prefilled.since(started);
    let logits = engine.run(session, answer, &(0..0), LogitRows::All)?;
    let rows = logits.iter().flat_map(|logits| (0..logits.rows()).map(move |row| logits.row(row)));
    // The last row predicts what follows the answer.
    rows.take(answer.len() - 1).for_each(seen);
    outcome.decode = clock.now().since(scored);
    Ok(outcome)
}

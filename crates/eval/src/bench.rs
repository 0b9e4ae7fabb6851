//! What retention costs and saves in time: one long session, turn by turn, under each policy.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::retention::Retention;
use hawser_kv::retention::Origin;
use hawser_model::executor::LogitRows;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::session::{Engine, Session, SessionError};

/// A session that grows by turns of random tokens.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Tokens at its end.
    pub tokens: usize,
    /// Tokens that each turn adds, and of them how many are decoded one by one.
    pub turn: usize,
    pub decoded: usize,
    pub seed: u64,
}

/// One session's times, in milliseconds unless said otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timed {
    pub policy: String,
    pub budget_tokens: u32,
    pub prefill_ms: f64,
    /// Scoring and evicting, in all.
    pub prune_ms: f64,
    pub decode_ms: f64,
    pub prunes: usize,
    /// The median prune, and its candidates.
    pub median_prune_ms: f64,
    pub median_candidates: usize,
    /// Decode speed in the last turn, in tokens per second.
    pub last_turn_decode_tok_per_s: f64,
    /// Rows that decoding read, and would have read with nothing evicted.
    pub kv_rows_read: u64,
    pub kv_rows_full: u64,
    /// Most slots held at once.
    pub peak_slots: usize,
}

/// Runs the course under a policy.
///
/// # Errors
/// [`SessionError`] where the pool is too small or a step fails.
pub fn run(engine: &mut Engine, retention: &Retention, course: &Course) -> Result<Timed, SessionError> {
    let mut session = engine.open(retention.clone(), 64);
    let ran = turns(engine, &mut session, course);
    engine.close(session);
    let mut timed = ran?;
    timed.policy = retention.policy.name().to_owned();
    timed.budget_tokens = retention.budget_tokens;
    Ok(timed)
}

fn turns(engine: &mut Engine, session: &mut Session, course: &Course) -> Result<Timed, SessionError> {
    let clock = Clock::system();
    let mut rng = StdRng::seed_from_u64(course.seed);
    let vocabulary = u32::try_from(engine.executor.config().vocab).expect("token ids are 32-bit");
    let mut timed = Timed::default();
    let mut prunes: Vec<(Duration, usize)> = Vec::new();
    let mut turn = 0;
    while session.map.len() < course.tokens {
        let new = course.turn.min(course.tokens - session.map.len());
        let decoded = course.decoded.min(new);
        let mut tokens =
            |count: usize| -> Vec<u32> { (0..count).map(|_| rng.random_range(0..vocabulary)).collect() };
        let (prompt, answer) = (tokens(new - decoded), tokens(decoded));
        let start = position(session.map.len());
        let span = start..start + position(prompt.len());
        session.marks.extend_to(span.end, Origin::Tool, turn);
        let began = clock.now();
        engine.run(session, &prompt, &span, LogitRows::Last)?;
        engine.end_span(session);
        let prefilled = clock.now();
        timed.peak_slots = timed.peak_slots.max(engine.pool.usable() - engine.pool.free());
        let pruned = engine.prune(session, &span)?;
        let decodes = clock.now();
        if let Some(pruned) = pruned {
            prunes.push((decodes.since(prefilled), pruned.event.candidates.len()));
        }
        session.marks.extend_to(span.end + position(answer.len()), Origin::Assistant, turn);
        for token in answer {
            engine.run(session, &[token], &(0..0), LogitRows::Last)?;
            timed.kv_rows_read += session.map.live().len() as u64;
            timed.kv_rows_full += session.map.len() as u64;
        }
        let decode = clock.now().since(decodes);
        timed.prefill_ms += millis(prefilled.since(began));
        timed.prune_ms += millis(decodes.since(prefilled));
        timed.decode_ms += millis(decode);
        timed.last_turn_decode_tok_per_s = decoded as f64 / decode.as_secs_f64().max(f64::EPSILON);
        turn += 1;
    }
    prunes.sort_unstable();
    if let Some(&(time, candidates)) = prunes.get(prunes.len() / 2) {
        (timed.median_prune_ms, timed.median_candidates) = (millis(time), candidates);
    }
    timed.prunes = prunes.len();
    Ok(timed)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn position(count: usize) -> u32 {
    u32::try_from(count).expect("positions are 32-bit")
}

//! Golden sessions of the tiny checkpoints: memories, scores, kept sets and logits of every policy over several turns.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use hawser_device::kv::RowType;
use hawser_eval::session::{Engine, Session};
use hawser_kv::retention::Origin;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions, LogitRows};
use hawser_model::layers::Model;
use serde::Deserialize;

use crate::engine::argmax;
use crate::fixtures::{self, TINY};

#[derive(Deserialize)]
struct Golden {
    sessions: Vec<GoldenSession>,
}

#[derive(Deserialize)]
struct GoldenSession {
    policy: String,
    protected_prefix: u32,
    lambda: f32,
    budget: u32,
    trigger: u32,
    recent: u32,
    snap_window: u32,
    snap_pool: u32,
    turns: Vec<GoldenTurn>,
}

#[derive(Deserialize)]
struct GoldenTurn {
    append: Vec<u32>,
    query_span: [u32; 2],
    live_before_prune: usize,
    prefill_last_logits: Vec<f32>,
    #[serde(default)]
    memory: Vec<f32>,
    #[serde(default)]
    candidates: Vec<u32>,
    #[serde(default)]
    scores_fixed40: Vec<i64>,
    #[serde(default)]
    kept_candidates: Vec<u32>,
    #[serde(default)]
    evicted: Vec<u32>,
    live_after_prune: usize,
    decode_tokens: Vec<u32>,
    decode_logits: Vec<Vec<f32>>,
}

fn close(what: &str, ours: &[f32], golden: &[f32]) -> Result<f32> {
    ensure!(ours.len() == golden.len(), "{what}: {} numbers, not {}", ours.len(), golden.len());
    let error = ours.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    ensure!(error <= 1e-4, "{what}: off by {error}");
    Ok(error)
}

fn ids(positions: &[Position]) -> Vec<u32> {
    positions.iter().map(|position| position.0).collect()
}

fn open(engine: &mut Engine, golden: &GoldenSession) -> Result<Session> {
    let policy = Policy::parse(&golden.policy).with_context(|| format!("policy {}", golden.policy))?;
    let retention = Retention {
        policy,
        budget_tokens: golden.budget,
        trigger_tokens: golden.trigger,
        recent_tokens: golden.recent,
        memory_decay: golden.lambda,
        window_rows: golden.snap_window,
        pool_positions: golden.snap_pool,
        sink_tokens: 0,
        span_cap: false,
        role_weight: 0.0,
        user_weight: 0.0,
        mass_every: 1,
        ..Retention::default()
    };
    Ok(engine.open(retention, golden.protected_prefix))
}

fn turn(engine: &mut Engine, session: &mut Session, golden: &GoldenTurn, errors: &mut Errors) -> Result<()> {
    let span: Range<u32> = golden.query_span[0]..golden.query_span[1];
    session.marks.extend_to(span.end, Origin::User, session.marks.turn() + 1);
    let logits = engine.run(session, &golden.append, &span, LogitRows::Last)?;
    let logits = logits.last().context("logits of the last row")?.row(0).to_vec();
    errors.logits = errors.logits.max(close("logits of the prefill", &logits, &golden.prefill_last_logits)?);
    ensure!(session.map.live().len() == golden.live_before_prune, "live before the prune");
    engine.end_span(session);
    if !golden.memory.is_empty() {
        let memory = engine.memory(session).context("a memory")?;
        errors.memory = errors.memory.max(close("memory", memory, &golden.memory)?);
    }
    let pruned = engine.prune(session, &span)?;
    ensure!(pruned.is_some() != golden.candidates.is_empty(), "a prune where the reference has one");
    if let Some(pruned) = pruned {
        ensure!(ids(&pruned.event.candidates) == golden.candidates, "candidates");
        ensure!(ids(&pruned.selection.kept) == golden.kept_candidates, "kept set");
        ensure!(ids(&pruned.selection.evicted) == golden.evicted, "evicted set");
        for (ours, golden) in pruned.scores.iter().zip(&golden.scores_fixed40) {
            let error = (ours - golden).abs() as f32 / (*golden).max(1) as f32;
            ensure!(error <= 1e-4, "a score of {ours}, not {golden}");
            errors.scores = errors.scores.max(error);
        }
    }
    ensure!(session.map.live().len() == golden.live_after_prune, "live after the prune");
    let mut logits = logits;
    for &token in &golden.decode_tokens {
        ensure!(argmax(&logits) == token, "greedy token {} instead of {token}", argmax(&logits));
        session.marks.extend_to(session.marks.len() + 1, Origin::Assistant, session.marks.turn());
        let next = engine.run(session, &[token], &(0..0), LogitRows::Last)?;
        logits = next[0].row(0).to_vec();
    }
    let last = golden.decode_logits.last().context("decode logits")?;
    errors.logits = errors.logits.max(close("logits after decoding", &logits, last)?);
    Ok(())
}

#[derive(Debug, Default)]
struct Errors {
    logits: f32,
    memory: f32,
    scores: f32,
}

fn check(name: &str, chunk: usize) -> Result<()> {
    let model = Arc::new(Model::load(&Checkpoint::open(fixtures::folder().join(name))?)?);
    let golden: Golden = fixtures::read(&format!("{name}/golden.json"))?;
    for (number, golden) in golden.sessions.iter().enumerate() {
        let threads = NonZeroUsize::new(2).context("two threads")?;
        let options = ExecutorOptions { slots: 600, row_type: RowType::F32, threads };
        let mut engine = Engine::new(Executor::new(Arc::clone(&model), options)?, chunk, 0);
        let mut session = open(&mut engine, golden)?;
        let mut errors = Errors::default();
        for (index, golden_turn) in golden.turns.iter().enumerate() {
            turn(&mut engine, &mut session, golden_turn, &mut errors).with_context(|| {
                format!("{name}, session {number} ({}), turn {index}, chunks of {chunk}", golden.policy)
            })?;
        }
        println!("{name} {} {errors:?}", golden.policy);
        engine.close(session);
        ensure!(engine.pool.free() == engine.pool.usable(), "every slot is given back");
    }
    Ok(())
}

#[test]
fn r2_golden_sessions_keep_the_reference_sets_and_tokens() -> Result<()> {
    TINY.iter().try_for_each(|name| check(name, 512))
}

#[test]
fn r2_golden_sessions_do_not_depend_on_the_chunks() -> Result<()> {
    TINY.iter().try_for_each(|name| check(name, 7))
}

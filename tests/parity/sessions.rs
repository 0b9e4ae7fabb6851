//! Golden sessions of the tiny checkpoints: memories, scores, kept sets and logits of every policy over several turns.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use hawser_device::kv::RowType;
use hawser_eval::session::{Engine, Pruned, Session};
use hawser_kv::retention::Origin;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::LogitRows;
use serde::Deserialize;

use crate::engine::argmax;
use crate::fixtures::{self, TINY};
use crate::ranks::{Relay, in_group, options};

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

/// What one rank runs; alone, the only one.
struct Run {
    engine: Engine,
    relay: Relay,
    errors: Errors,
}

impl Run {
    /// Runs tokens, and the logits of the last row on the rank that has them.
    fn tokens(&mut self, session: &mut Session, tokens: &[u32], span: &Range<u32>) -> Result<Vec<f32>> {
        let logits = self.engine.run(session, tokens, span, LogitRows::Last)?;
        ensure!(self.relay.leads() != logits.is_empty(), "the leader has logits, and no other rank");
        Ok(logits.last().map_or_else(Vec::new, |logits| logits.row(0).to_vec()))
    }

    fn check_logits(&mut self, what: &str, logits: &[f32], golden: &[f32]) -> Result<()> {
        if self.relay.leads() {
            self.errors.logits = self.errors.logits.max(close(what, logits, golden)?);
        }
        Ok(())
    }

    /// The memory of the heads that are here.
    fn check_memory(&mut self, session: &Session, golden: &[f32]) -> Result<()> {
        let memory = self.engine.memory(session).context("a memory")?;
        let model = self.engine.executor.model();
        let (config, query) = (model.config(), &model.shard().heads.query);
        let here = query.start * config.head_dim..query.end * config.head_dim;
        let golden: Vec<f32> = golden
            .chunks_exact(config.query_width())
            .flat_map(|layer| &layer[here.clone()])
            .copied()
            .collect();
        self.errors.memory = self.errors.memory.max(close("memory", memory, &golden)?);
        Ok(())
    }

    fn prune(&mut self, session: &mut Session, span: &Range<u32>) -> Result<Option<Pruned>> {
        let Some(event) = Engine::due(session, span) else { return Ok(None) };
        let scores = self.engine.score(session, &event)?.unwrap_or_default();
        let scores = self.relay.share(scores)?;
        Ok(Some(self.engine.settle(session, event, scores)?))
    }
}

fn turn(run: &mut Run, session: &mut Session, golden: &GoldenTurn) -> Result<()> {
    let span: Range<u32> = golden.query_span[0]..golden.query_span[1];
    session.marks.extend_to(span.end, Origin::User, session.marks.turn() + 1);
    let logits = run.tokens(session, &golden.append, &span)?;
    run.check_logits("logits of the prefill", &logits, &golden.prefill_last_logits)?;
    ensure!(session.map.live().len() == golden.live_before_prune, "live before the prune");
    run.engine.end_span(session);
    if !golden.memory.is_empty() {
        run.check_memory(session, &golden.memory)?;
    }
    let pruned = run.prune(session, &span)?;
    ensure!(pruned.is_some() != golden.candidates.is_empty(), "a prune where the reference has one");
    if let Some(pruned) = pruned {
        ensure!(ids(&pruned.event.candidates) == golden.candidates, "candidates");
        ensure!(ids(&pruned.selection.kept) == golden.kept_candidates, "kept set");
        ensure!(ids(&pruned.selection.evicted) == golden.evicted, "evicted set");
        for (ours, golden) in pruned.scores.iter().zip(&golden.scores_fixed40) {
            let error = (ours - golden).abs() as f32 / (*golden).max(1) as f32;
            ensure!(error <= 1e-4, "a score of {ours}, not {golden}");
            run.errors.scores = run.errors.scores.max(error);
        }
    }
    ensure!(session.map.live().len() == golden.live_after_prune, "live after the prune");
    let mut logits = logits;
    for &token in &golden.decode_tokens {
        let greedy = argmax(&logits);
        ensure!(!run.relay.leads() || greedy == token, "greedy token {greedy} instead of {token}");
        session.marks.extend_to(session.marks.len() + 1, Origin::Assistant, session.marks.turn());
        logits = run.tokens(session, &[token], &(0..0))?;
    }
    let last = golden.decode_logits.last().context("decode logits")?;
    run.check_logits("logits after decoding", &logits, last)
}

#[derive(Debug, Default)]
struct Errors {
    logits: f32,
    memory: f32,
    scores: f32,
}

fn check(name: &str, world: usize, chunk: usize) -> Result<()> {
    let checkpoint = Checkpoint::open(fixtures::folder().join(name))?;
    let golden: Golden = fixtures::read(&format!("{name}/golden.json"))?;
    in_group(&checkpoint, world, options(600, RowType::F32), |rank| {
        let relay = rank.relay;
        let mut run = Run { engine: Engine::new(rank.executor, chunk, 0), relay, errors: Errors::default() };
        for (number, golden) in golden.sessions.iter().enumerate() {
            let mut session = open(&mut run.engine, golden)?;
            for (index, golden_turn) in golden.turns.iter().enumerate() {
                turn(&mut run, &mut session, golden_turn).with_context(|| {
                    format!(
                        "{name}, {world} ranks, session {number} ({}), turn {index}, chunks of {chunk}",
                        golden.policy
                    )
                })?;
            }
            run.engine.close(session);
            let pool = &run.engine.pool;
            ensure!(pool.free() == pool.usable(), "every slot is given back");
        }
        if run.relay.leads() {
            println!("{name}, {world} ranks: {:?}", run.errors);
        }
        Ok(())
    })
}

#[test]
fn r2_golden_sessions_keep_the_reference_sets_and_tokens() -> Result<()> {
    TINY.iter().try_for_each(|name| check(name, 1, 512))
}

#[test]
fn r2_golden_sessions_do_not_depend_on_the_chunks() -> Result<()> {
    TINY.iter().try_for_each(|name| check(name, 1, 7))
}

#[test]
fn r4_ranks_keep_the_reference_sets_and_tokens() -> Result<()> {
    [2, 3].into_iter().try_for_each(|world| TINY.iter().try_for_each(|name| check(name, world, 40)))
}

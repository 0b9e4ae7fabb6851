//! Rows that come back are those that went, and those of a session that never let them go: copied back, or computed again
//! at their positions.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use hawser_device::kv::{KvRows, RowType};
use hawser_eval::session::{Engine, Session};
use hawser_kv::retention::{Exchange, Origin};
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions, LogitRows};
use hawser_model::layers::Model;

use crate::fixtures;

const TURNS: usize = 6;
const TURN_TOKENS: usize = 48;
const REFILL_TURNS: usize = 8;

fn run_turn(engine: &mut Engine, session: &mut Session, turn: usize) -> Result<()> {
    let start = turn * TURN_TOKENS;
    let tokens: Vec<u32> = (start..start + TURN_TOKENS).map(|at| (at * 37 % 89) as u32).collect();
    let end = u32::try_from(start + TURN_TOKENS)?;
    session.marks.extend_to(end, Origin::User, u32::try_from(turn)?);
    let span = u32::try_from(start)?..end;
    engine.run(session, &tokens, &span, LogitRows::None)?;
    engine.end_span(session);
    engine.prune(session, &span)?;
    Ok(())
}

/// An engine over a model, with so many slots beside the pool.
fn engine(model: &std::path::Path, (archive, row_type): (usize, RowType)) -> Result<Engine> {
    let model = Model::load(&Checkpoint::open(model)?)?;
    let threads = NonZeroUsize::new(2).context("two threads")?;
    let options = ExecutorOptions { slots: 2_400 + archive, row_type, threads };
    Ok(Engine::new(Executor::new(model, options)?, 32, archive))
}

fn reviving(refill_tokens: u32) -> Retention {
    Retention {
        // Attention has no part in what goes, so that what goes may be asked for.
        policy: Policy::Random,
        // One block fits into an eighth of it.
        budget_tokens: 128,
        trigger_tokens: 0,
        revive: true,
        revive_margin: 0.0,
        refill_tokens,
        ..Retention::default()
    }
}

/// Dead positions of the first prune's time that come back in a turn: every third one of a stretch, so that holes are left
/// between them.
fn wanted(pruned: &Session, turn: usize) -> Exchange {
    let exact = u32::try_from(pruned.log.exact().min(pruned.map.len())).unwrap_or(0);
    let is_dead = |at: &Position| pruned.map.slot(*at).is_some_and(|slot| slot.is_dead());
    let dead: Vec<Position> = (0..exact).map(Position).filter(is_dead).collect();
    let revived = dead.into_iter().skip(turn * 5 % 40).step_by(3).take(16).collect();
    Exchange { revived, evicted: Vec::new() }
}

/// Hardly a row is in the archive: what comes back is computed, over what is live, what is copied for it and what is
/// computed with it. Bit-equal, since a row does not depend on the chunk that it runs in.
fn refilled_rows_are_the_same(model: &std::path::Path, row_type: RowType) -> Result<()> {
    let mut engine = engine(model, (24, row_type))?;
    let mut whole = engine.open(Retention { policy: Policy::Full, ..Retention::default() }, 0);
    let mut pruned = engine.open(reviving(4_096), 0);
    let (mut refilled, mut computed, mut copied) = (0, 0, 0);
    for turn in 0..REFILL_TURNS {
        run_turn(&mut engine, &mut whole, turn)?;
        run_turn(&mut engine, &mut pruned, turn)?;
        let exchange = wanted(&pruned, turn);
        let back = engine.bring_back(&mut pruned, exchange)?;
        ensure!(back.refilled + back.copied == back.exchanged.revived.len(), "{back:?}");
        ensure!(back.refilled <= back.computed && pruned.map.parked_rows().is_empty(), "{back:?}");
        (refilled, computed, copied) =
            (refilled + back.refilled, computed + back.computed, copied + back.copied);
        for &position in &back.exchanged.revived {
            ensure!(same_row(&engine, &whole, &pruned, position)?, "{model:?}: the row of {position:?}");
        }
    }
    println!("{model:?}: {copied} copied, {refilled} computed again in {computed} rows");
    ensure!(refilled > 30 && computed > refilled, "too little was computed again");
    engine.close(whole);
    engine.close(pruned);
    ensure!(engine.pool.free() == engine.pool.usable(), "every slot is given back");
    Ok(())
}

#[test]
fn refilled_rows_equal_the_rows_of_a_session_that_keeps_everything() -> Result<()> {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"] {
        refilled_rows_are_the_same(&fixtures::folder().join(name), RowType::F32)?;
    }
    Ok(())
}

#[test]
fn refilled_rows_of_the_demo_model_equal_those_of_a_session_that_keeps_everything() -> Result<()> {
    refilled_rows_are_the_same(&fixtures::demo_model()?, RowType::F16)
}

#[test]
fn revived_rows_equal_the_rows_of_a_session_that_keeps_everything() -> Result<()> {
    let mut engine = engine(&fixtures::folder().join("tiny-llama"), (600, RowType::F32))?;
    let full = Retention { policy: Policy::Full, ..Retention::default() };
    let retention = reviving(0);
    let mut whole = engine.open(full, 0);
    let mut pruned = engine.open(retention, 0);
    let (mut revived, mut compared) = (0, 0);
    for turn in 0..TURNS {
        run_turn(&mut engine, &mut whole, turn)?;
        run_turn(&mut engine, &mut pruned, turn)?;
        let end = u32::try_from((turn + 1) * TURN_TOKENS)?;
        let span = end - u32::try_from(TURN_TOKENS)?..end;
        let Some(back) = engine.revive(&mut pruned, &span)? else { continue };
        ensure!(back.exchanged.revived.len() <= 128 / 8, "at most an eighth of the budget");
        ensure!(pruned.map.live().len() <= 128, "the budget holds");
        revived += back.exchanged.revived.len();
        let exact = pruned.log.exact();
        for &position in back.exchanged.revived.iter().filter(|position| position.index() < exact) {
            ensure!(same_row(&engine, &whole, &pruned, position)?, "the row of {position:?} is another");
            compared += 1;
        }
    }
    println!("{revived} came back, {compared} of exact lineage");
    ensure!(compared > 0, "nothing of exact lineage came back");
    engine.close(whole);
    engine.close(pruned);
    ensure!(engine.pool.free() == engine.pool.usable(), "every slot is given back");
    Ok(())
}

fn same_row(engine: &Engine, a: &Session, b: &Session, position: Position) -> Result<bool> {
    let slot = |session: &Session| session.map.slot(position).context("a slot");
    let (kv, a, b) = (engine.executor.kv(), slot(a)?, slot(b)?);
    ensure!(a != b && !b.is_dead(), "rows of its own");
    let shape = kv.shape();
    let (mut x, mut y) = (vec![0.0; shape.head_dim], vec![0.0; shape.head_dim]);
    for layer in 0..shape.layers {
        for head in 0..shape.kv_heads {
            for read in [KvRows::key as fn(&_, _, _, _, &mut [f32]), KvRows::value] {
                read(kv, layer, a, head, &mut x);
                read(kv, layer, b, head, &mut y);
                if x != y {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// What is left keeps its bits when others go, and the next token has the position that it would have had: in the first
/// layer a key depends on its token and its position only.
#[test]
fn t3_a_prune_moves_nothing_and_positions_go_on_from_the_logical_length() -> Result<()> {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"] {
        let mut engine = engine(&fixtures::folder().join(name), (0, RowType::F32))?;
        let mut whole = engine.open(Retention { policy: Policy::Full, ..Retention::default() }, 0);
        let keep = Retention { revive: false, budget_tokens: 40, ..reviving(0) };
        let mut pruned = engine.open(keep, 0);
        for turn in 0..3 {
            let before = pruned.map.live_positions().to_vec();
            let rows = keys(&engine, &pruned, &before, 0)?;
            run_turn(&mut engine, &mut whole, turn)?;
            run_turn(&mut engine, &mut pruned, turn)?;
            let left: Vec<Position> = before
                .iter()
                .copied()
                .filter(|&at| pruned.map.slot(at).is_some_and(|s| !s.is_dead()))
                .collect();
            let expected: Vec<Vec<f32>> = std::iter::zip(&before, rows)
                .filter(|(at, _)| left.contains(at))
                .map(|(_, row)| row)
                .collect();
            ensure!(keys(&engine, &pruned, &left, 0)? == expected, "{name}: a survivor changed");
            ensure!(left.len() < before.len() || turn == 0, "{name}: nothing went");
            let live = pruned.map.live_positions().to_vec();
            ensure!(live.len() == 40 && pruned.map.len() == (turn + 1) * TURN_TOKENS, "{name}: the budget");
            ensure!(
                keys(&engine, &pruned, &live, 0)? == keys(&engine, &whole, &live, 0)?,
                "{name}: a key was turned by another position"
            );
        }
    }
    Ok(())
}

/// Keys of some positions in one layer, all heads.
fn keys(engine: &Engine, session: &Session, positions: &[Position], layer: usize) -> Result<Vec<Vec<f32>>> {
    let kv = engine.executor.kv();
    let shape = kv.shape();
    let key = |&at: &Position| -> Result<Vec<f32>> {
        let slot = session.map.slot(at).context("a slot")?;
        let mut row = vec![0.0; shape.kv_heads * shape.head_dim];
        row.chunks_exact_mut(shape.head_dim)
            .enumerate()
            .for_each(|(head, row)| kv.key(layer, slot, head, row));
        Ok(row)
    };
    positions.iter().map(key).collect()
}

//! Rows that come back are those that went, and those of a session that never let them go: copied back, or computed again
//! at their positions.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use hawser_device::kv::{KvRows, RowType};
use hawser_eval::session::{Engine, Session};
use hawser_kv::retention::Origin;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{Executor, ExecutorOptions, LogitRows};
use hawser_model::layers::Model;

use crate::fixtures;

const TURNS: usize = 6;
const TURN_TOKENS: usize = 48;

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

/// An engine over a fixture's model, with so many slots beside the pool.
fn engine(name: &str, archive: usize) -> Result<Engine> {
    let model = Model::load(&Checkpoint::open(fixtures::folder().join(name))?)?;
    let threads = NonZeroUsize::new(2).context("two threads")?;
    let options = ExecutorOptions { slots: 900 + archive, row_type: RowType::F32, threads };
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

/// The archive holds digests and hardly a row: what comes back is computed, over what is live, what is copied for it and
/// what is computed with it. Bit-equal, since a row does not depend on the chunk that it runs in.
#[test]
fn refilled_rows_equal_the_rows_of_a_session_that_keeps_everything() -> Result<()> {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"] {
        let mut engine = engine(name, 24)?;
        let full = Retention { policy: Policy::Full, ..Retention::default() };
        let mut whole = engine.open(full, 0);
        let mut pruned = engine.open(reviving(100), 0);
        let (mut refilled, mut computed, mut compared) = (0, 0, 0);
        for turn in 0..TURNS {
            run_turn(&mut engine, &mut whole, turn)?;
            run_turn(&mut engine, &mut pruned, turn)?;
            let end = u32::try_from((turn + 1) * TURN_TOKENS)?;
            let Some(back) = engine.revive(&mut pruned, &(end - u32::try_from(TURN_TOKENS)?..end))? else {
                continue;
            };
            ensure!(back.computed <= 100 && back.refilled <= back.computed, "{back:?}");
            ensure!(
                pruned.map.live().len() <= 128 && pruned.map.parked_rows().is_empty(),
                "the budget holds"
            );
            (refilled, computed) = (refilled + back.refilled, computed + back.computed);
            let exact = pruned.log.exact();
            for &position in back.exchanged.revived.iter().filter(|position| position.index() < exact) {
                ensure!(same_row(&engine, &whole, &pruned, position)?, "{name}: the row of {position:?}");
                compared += 1;
            }
        }
        println!("{name}: {refilled} were computed again, {computed} rows in all, {compared} compared");
        ensure!(refilled > 0 && compared >= refilled, "nothing was computed again");
        engine.close(whole);
        engine.close(pruned);
        ensure!(engine.pool.free() == engine.pool.usable(), "every slot is given back");
    }
    Ok(())
}

#[test]
fn revived_rows_equal_the_rows_of_a_session_that_keeps_everything() -> Result<()> {
    let mut engine = engine("tiny-llama", 600)?;
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

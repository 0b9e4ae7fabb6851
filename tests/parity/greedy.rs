//! The demo model's greedy continuations against float32 arithmetic on the dequantised weights.

use std::sync::Arc;

use anyhow::{Result, ensure};
use hawser_device::kv::RowType;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::LogitRows;
use hawser_model::layers::Model;
use serde::Deserialize;

use crate::engine::{Engine, Feed, Session, argmax};
use crate::fixtures;

/// A step whose two best tokens are closer than this may be decided by how an engine rounds; from there on the texts
/// differ for good reason.
const SAFE_MARGIN: f32 = 0.5;
/// Products of quantised weights round activations to int8; this much of it arrives at the first step's ten best
/// logits, which are around 30: root of the mean square, without what they all have in common, which no distribution
/// shows. With the same weights widened to f32 the difference is 5e-5.
const FIRST_STEP_TOLERANCE: f32 = 0.5;

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    first_step_top10: Top,
}

#[derive(Deserialize)]
struct Top {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

#[test]
fn greedy_tokens_agree_while_the_margin_is_safe() -> Result<()> {
    let cases: Vec<Case> = fixtures::read("smollm2/greedy_cases.json")?;
    let model = Arc::new(Model::load(&Checkpoint::open(fixtures::demo_model()?)?)?);
    for row_type in [RowType::F32, RowType::F16] {
        let mut engine = Engine::new(&model, 2048, row_type, 1)?;
        let (mut steps, mut possible) = (0, 0);
        for (index, case) in cases.iter().enumerate() {
            let (agreed, safe) = check(&mut engine, case)?;
            println!(
                "{row_type:?} case {index}: {agreed} tokens agree, {safe} before the first small margin"
            );
            ensure!(agreed >= safe, "{row_type:?} case {index}: only {agreed} of {safe} safe tokens agree");
            (steps, possible) = (steps + agreed, possible + case.greedy.len());
        }
        println!("{row_type:?}: {steps} of {possible} tokens agree");
    }
    Ok(())
}

/// E24 on quantised weights: prompts that are prefilled and decoded in common steps give the logits they give alone.
#[test]
fn quantised_rows_do_not_depend_on_the_batch() -> Result<()> {
    let cases: Vec<Case> = fixtures::read("smollm2/greedy_cases.json")?;
    let model = Arc::new(Model::load(&Checkpoint::open(fixtures::demo_model()?)?)?);
    let mut engine = Engine::new(&model, 8192, RowType::F16, 2)?;
    let mut alone = Vec::new();
    for case in &cases {
        let mut session = Session::default();
        let prefill = engine.feed(&mut session, &case.prompt_ids, LogitRows::Last)?;
        let decode = engine.feed(&mut session, &case.greedy[..1], LogitRows::Last)?;
        alone.push([prefill.row(0).to_vec(), decode.row(0).to_vec()]);
    }
    let mut sessions = vec![Session::default(); cases.len()];
    for step in 0..2 {
        let tokens =
            cases.iter().map(|case| if step == 0 { &case.prompt_ids[..] } else { &case.greedy[..1] });
        let mut feeds: Vec<_> = sessions
            .iter_mut()
            .zip(tokens)
            .map(|(session, tokens)| Feed { session, tokens, logits: LogitRows::Last })
            .collect();
        let together = engine.step(&mut feeds)?;
        for (index, alone) in alone.iter().enumerate() {
            ensure!(together.row(index) == alone[step], "case {index}, step {step}");
        }
    }
    Ok(())
}

/// How many tokens agree, and how many come before the first small margin.
fn check(engine: &mut Engine, case: &Case) -> Result<(usize, usize)> {
    let mut session = Session::default();
    let mut logits = engine.feed(&mut session, &case.prompt_ids, LogitRows::Last)?;
    let top = case.first_step_top10.ids.iter().zip(&case.first_step_top10.logits);
    let errors: Vec<f32> = top.map(|(id, logit)| logits.row(0)[*id as usize] - logit).collect();
    let common = errors.iter().sum::<f32>() / errors.len() as f32;
    let rest = errors.iter().map(|error| (error - common).powi(2)).sum::<f32>() / errors.len() as f32;
    let rest = rest.sqrt();
    println!("first step: the ten best logits differ by {common} all together, and by {rest} (rms) besides");
    ensure!(rest <= FIRST_STEP_TOLERANCE, "the first step's logits differ by {rest} (rms)");
    let safe = case.margins.iter().position(|margin| *margin < SAFE_MARGIN).unwrap_or(case.greedy.len());
    let mut agreed = 0;
    for expected in &case.greedy {
        let token = argmax(logits.row(0));
        if token != *expected {
            break;
        }
        agreed += 1;
        logits = engine.feed(&mut session, &[token], LogitRows::Last)?;
    }
    engine.close(session);
    Ok((agreed, safe))
}

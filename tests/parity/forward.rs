//! Logits of the tiny checkpoints against Hugging Face transformers, and what must not change them: chunking,
//! batching, the file format.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use hawser_device::kv::RowType;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::executor::{LogitRows, Logits};
use hawser_model::layers::Model;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

use crate::engine::{Engine, Feed, Session, argmax, chunks};
use crate::fixtures::{self, TINY};
use crate::gguf::Gguf;
use crate::ranks::{in_group, options};

const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    forward: Forward,
}

#[derive(Deserialize)]
struct Forward {
    tokens: Vec<u32>,
    logit_rows: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

fn golden(name: &str) -> Result<Forward> {
    Ok(fixtures::read::<Golden>(&format!("{name}/golden.json"))?.forward)
}

fn model(name: &str) -> Result<Arc<Model>> {
    Ok(Arc::new(Model::load(&Checkpoint::open(fixtures::folder().join(name))?)?))
}

fn seed() -> u64 {
    let seed = rand::random();
    println!("seed {seed}");
    seed
}

fn engine(model: &Arc<Model>, seed: u64) -> Result<Engine> {
    Engine::new(model, 1024, RowType::F32, seed)
}

/// All rows of a sequence, fed in the given chunks.
fn rows(engine: &mut Engine, chunks: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let mut session = Session::default();
    let mut rows = Vec::new();
    for chunk in chunks {
        let logits = engine.feed(&mut session, chunk, LogitRows::All)?;
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
    }
    engine.close(session);
    Ok(rows)
}

/// Largest difference from the golden rows.
fn check(golden: &Forward, rows: &[Vec<f32>]) -> Result<f32> {
    let mut worst = 0_f32;
    for (row, expected) in golden.logit_rows.iter().zip(&golden.logits) {
        let found = rows.get(*row).with_context(|| format!("row {row} is missing"))?;
        ensure!(found.len() == expected.len(), "row {row} has {} logits", found.len());
        for (a, b) in found.iter().zip(expected) {
            // A NaN must not pass for a small difference.
            let difference = (a - b).abs();
            worst = if difference <= worst { worst } else { difference };
        }
    }
    ensure!(worst <= TOLERANCE, "logits differ by {worst}");
    Ok(worst)
}

#[test]
fn forward_matches_the_reference_whole_and_in_random_chunks() -> Result<()> {
    for name in TINY {
        let seed = seed();
        let mut rng = StdRng::seed_from_u64(seed);
        let (golden, model) = (golden(name)?, model(name)?);
        let mut engine = engine(&model, seed)?;
        let whole = rows(&mut engine, &[&golden.tokens])?;
        let worst = check(&golden, &whole).context(name)?;
        println!("{name}: largest difference {worst:e}");
        for _ in 0..5 {
            let cut = chunks(&mut rng, &golden.tokens);
            // Chunking changes no bit (E12), so the golden check of the whole run holds for every cut.
            ensure!(
                rows(&mut engine, &cut)? == whole,
                "{name}: chunks of {:?}",
                cut.iter().map(|c| c.len()).collect::<Vec<_>>()
            );
        }
    }
    Ok(())
}

/// E10: the ranks of a group give the logits of one machine.
#[test]
fn e10_ranks_match_the_reference() -> Result<()> {
    for name in TINY {
        let golden = golden(name)?;
        let checkpoint = Checkpoint::open(fixtures::folder().join(name))?;
        for world in [2, 3] {
            let found = in_group(&checkpoint, world, options(1024, RowType::F32), |rank| {
                rows(&mut Engine::over(rank.executor, 1)?, &[&golden.tokens[..7], &golden.tokens[7..]])
            })?;
            let worst = check(&golden, &found).with_context(|| format!("{name}, {world} ranks"))?;
            println!("{name}, {world} ranks: largest difference {worst:e}");
        }
    }
    Ok(())
}

/// E12, E24: the same sequence several times in one step, between others and at other lengths, is what it is alone.
#[test]
fn a_row_does_not_depend_on_the_rest_of_the_batch() -> Result<()> {
    for name in TINY {
        let seed = seed();
        let mut rng = StdRng::seed_from_u64(seed);
        let (golden, model) = (golden(name)?, model(name)?);
        let mut engine = engine(&model, seed)?;
        let (prefix, tail) = golden.tokens.split_at(rng.random_range(1..golden.tokens.len()));
        let alone = {
            let mut session = Session::default();
            engine.feed(&mut session, prefix, LogitRows::None)?;
            engine.feed(&mut session, tail, LogitRows::All)?
        };
        for size in 2..=8 {
            let others: Vec<Vec<u32>> = (0..size).map(|_| random_tokens(&mut rng, &model)).collect();
            let mut sessions = vec![Session::default(); size];
            for (index, session) in sessions.iter_mut().enumerate() {
                let prompt = if index % 2 == 0 { prefix } else { &others[index] };
                engine.feed(session, prompt, LogitRows::None)?;
            }
            let mut feeds: Vec<_> = sessions
                .iter_mut()
                .enumerate()
                .map(|(index, session)| {
                    let tokens = if index % 2 == 0 { tail } else { &others[index] };
                    Feed { session, tokens, logits: LogitRows::All }
                })
                .collect();
            let lengths: Vec<usize> = feeds.iter().map(|feed| feed.tokens.len()).collect();
            let together = engine.step(&mut feeds)?;
            let mut from = 0;
            for (index, length) in lengths.into_iter().enumerate() {
                if index % 2 == 0 {
                    ensure!(same(&alone, &together, from), "{name}: sequence {index} of {size}");
                }
                from += length;
            }
            sessions.into_iter().for_each(|session| engine.close(session));
        }
    }
    Ok(())
}

fn random_tokens(rng: &mut StdRng, model: &Model) -> Vec<u32> {
    let vocab = u32::try_from(model.config().vocab).unwrap_or(u32::MAX);
    (0..rng.random_range(1..40)).map(|_| rng.random_range(0..vocab)).collect()
}

/// Whether all rows of `alone` are the rows of `together` from `from` on.
fn same(alone: &Logits, together: &Logits, from: usize) -> bool {
    (0..alone.rows()).all(|row| alone.row(row) == together.row(from + row))
}

/// E24: greedy decoding in step with others gives the tokens of decoding alone.
#[test]
fn greedy_tokens_do_not_depend_on_the_batch() -> Result<()> {
    for name in TINY {
        let seed = seed();
        let mut rng = StdRng::seed_from_u64(seed);
        let model = model(name)?;
        let mut engine = engine(&model, seed)?;
        let prompts: Vec<_> = (0..6).map(|_| random_tokens(&mut rng, &model)).collect();
        let alone = prompts.iter().map(|prompt| engine.greedy(prompt, 8)).collect::<Result<Vec<_>>>()?;
        let mut sessions = vec![Session::default(); prompts.len()];
        let mut next = prompts.clone();
        let mut together = vec![Vec::new(); prompts.len()];
        for _ in 0..8 {
            let mut feeds: Vec<_> = sessions
                .iter_mut()
                .zip(&next)
                .map(|(session, tokens)| Feed { session, tokens, logits: LogitRows::Last })
                .collect();
            let logits = engine.step(&mut feeds)?;
            for (index, next) in next.iter_mut().enumerate() {
                let token = argmax(logits.row(index));
                together[index].push(token);
                *next = vec![token];
            }
        }
        ensure!(alone == together, "{name}: {alone:?} alone, {together:?} together");
    }
    Ok(())
}

/// E13: GGUF files of the Llama architecture have their q and k rows in another order, those of Qwen do not; both give
/// the logits of the safetensors they were made from.
#[test]
fn a_gguf_gives_the_logits_of_its_safetensors() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in TINY {
        let golden = golden(name)?;
        let source = Checkpoint::open(fixtures::folder().join(name))?;
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::write(&path, Gguf::from_checkpoint(&source)?.to_bytes())?;
        let converted = Checkpoint::open(&path)?;
        ensure!(converted.config() == source.config(), "{name}: {:?}", converted.config());
        ensure!(converted.digest() != source.digest(), "{name}: digests of different files");
        let mut engine = engine(&Arc::new(Model::load(&converted)?), 1)?;
        check(&golden, &rows(&mut engine, &[&golden.tokens])?).context(name)?;
    }
    Ok(())
}

/// E18: what a slot that is not live holds never reaches a logit.
#[test]
fn poisoned_dead_and_free_slots_change_nothing() -> Result<()> {
    for name in TINY {
        let golden = golden(name)?;
        let mut engine = engine(&model(name)?, seed())?;
        let clean = rows(&mut engine, &[&golden.tokens])?;
        engine.poison();
        ensure!(rows(&mut engine, &[&golden.tokens[..5], &golden.tokens[5..]])? == clean, "{name}");
    }
    Ok(())
}

/// Llama 3.1 and later: safetensors name the scaling, GGUF files hold what it does to each frequency.
#[test]
fn scaled_rope_is_the_same_from_a_rule_and_from_its_factors() -> Result<()> {
    let source = fixtures::folder().join("tiny-llama");
    let golden = golden("tiny-llama")?;
    let folder = tempfile::tempdir()?;
    let scaled = "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \
                  \"original_max_position_embeddings\": 64";
    let config = std::fs::read_to_string(source.join("config.json"))?;
    std::fs::write(folder.path().join("config.json"), config.replace("\"rope_type\": \"default\"", scaled))?;
    std::fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors"))?;
    let (plain, ruled) = (Checkpoint::open(&source)?, Checkpoint::open(folder.path())?);
    let mut gguf = Gguf::from_checkpoint(&plain)?;
    let frequencies =
        |checkpoint: &Checkpoint| checkpoint.config().rope.frequencies(checkpoint.config().head_dim);
    let factors = frequencies(&plain).iter().zip(frequencies(&ruled)).map(|(a, b)| (a / b) as f32).collect();
    gguf.vector("rope_freqs.weight", factors);
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, gguf.to_bytes())?;
    let run = |checkpoint: &Checkpoint| -> Result<Vec<Vec<f32>>> {
        rows(&mut engine(&Arc::new(Model::load(checkpoint)?), 1)?, &[&golden.tokens])
    };
    let (plain, ruled, factored) = (run(&plain)?, run(&ruled)?, run(&Checkpoint::open(&path)?)?);
    let worst = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0_f32, f32::max)
    };
    ensure!(worst(&ruled, &factored) <= TOLERANCE, "rule and factors differ by {}", worst(&ruled, &factored));
    ensure!(worst(&plain, &ruled) > 0.01, "the scaling changes nothing");
    Ok(())
}

//! E10, R4, R8: a model on several ranks is the model on one, whatever its heads, its format and the number of ranks.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use hawser_common::retention::Aggregation;
use hawser_common::{Coded, ErrorCode, Position, SlotId};
use hawser_device::collective::{Collective, Fault, Faulty, StepTag, ThreadRank};
use hawser_device::kv::RowType;
use hawser_kv::retention::Evidence;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::config::{Architecture, ModelConfig};
use hawser_model::executor::{
    Batch, Executor, LogitRows, Logits, MemoryId, Observe, Recursion, ScoreRequest, Scores, Sequence,
    StepError,
};
use hawser_model::shard::ShardError;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::engine::{Engine, Session, argmax};
use crate::fixtures;
use crate::random::{Format, checkpoint, config};
use crate::ranks::{in_group, on_each_rank, options, plan};

const ROWS: usize = 60;
const DECODED: usize = 4;
const MEMORY: MemoryId = MemoryId(7);
const WINDOW: usize = 8;

/// A session with fixed tokens, observed in every way.
struct Script {
    tokens: Vec<u32>,
    slots: Vec<SlotId>,
    /// Where the prompt is cut in two.
    cut: usize,
}

/// What came out of it.
#[derive(Debug, PartialEq)]
struct Outcome {
    logits: Vec<f32>,
    /// By evidence and aggregation.
    scores: Vec<Scores>,
}

impl Script {
    fn new(rng: &mut StdRng, vocab: usize) -> Self {
        let count = ROWS + DECODED;
        let mut slots: Vec<SlotId> = (1..=count as u32).map(SlotId).collect();
        slots.shuffle(rng);
        let tokens = (0..count).map(|_| rng.random_range(0..vocab as u32)).collect();
        Self { tokens, slots, cut: rng.random_range(1..ROWS - 1) }
    }

    fn run(&self, mut executor: Executor) -> Result<Outcome> {
        let mut logits = Vec::new();
        executor.begin_memory(MEMORY);
        let decoded = (ROWS..ROWS + DECODED).map(|row| row..row + 1);
        for rows in [0..self.cut, self.cut..ROWS].into_iter().chain(decoded) {
            let step = self.step(&mut executor, rows)?;
            (0..step.rows()).for_each(|row| logits.extend(step.row(row)));
        }
        executor.remember(MEMORY, Recursion::Query);
        let mut scores = Vec::new();
        for (evidence, aggregation) in requests() {
            executor.begin(StepTag { epoch: 1, step: 1000 });
            scores.extend(self.score(&mut executor, evidence, aggregation)?);
        }
        Ok(Outcome { logits, scores })
    }

    fn step(&self, executor: &mut Executor, rows: Range<usize>) -> Result<Logits, StepError> {
        let positions: Vec<Position> = (0..self.slots.len() as u32).map(Position).collect();
        // The last rows of the prompt are its query span and the window.
        let within = |range: Range<usize>| {
            let at = |row: usize| row.clamp(rows.start, rows.end) - rows.start;
            at(range.start)..at(range.end)
        };
        let observe = Observe {
            memory: MEMORY,
            span: within(ROWS - 12..ROWS),
            hint: false,
            window: within(ROWS - WINDOW..ROWS),
            restart_window: false,
            window_rows: WINDOW,
            mass: std::iter::once(0..rows.len()).collect(),
        };
        let sequence = Sequence {
            rows: 0..rows.len(),
            context: &self.slots[..rows.start],
            after: 0,
            positions: &positions[..rows.start],
            logits: LogitRows::All,
            observe: Some(observe),
        };
        let batch = Batch {
            tokens: &self.tokens[rows.clone()],
            positions: &positions[rows.clone()],
            slots: &self.slots[rows.clone()],
            sequences: &[sequence],
        };
        executor.begin(StepTag { epoch: 1, step: rows.start as u64 });
        executor.step(&batch)
    }

    /// Scores every second position.
    fn score(
        &self,
        executor: &mut Executor,
        evidence: Evidence,
        aggregation: Aggregation,
    ) -> Result<Option<Scores>, StepError> {
        let candidates: Vec<u32> = (0..self.slots.len() as u32).step_by(2).collect();
        let positions: Vec<Position> = candidates.iter().map(|&at| Position(at)).collect();
        executor.score(&ScoreRequest {
            memory: MEMORY,
            evidence,
            peek: None,
            live: &self.slots,
            candidates: &candidates,
            positions: &positions,
            aggregation,
            keep: candidates.len() / 2,
            pool: 5,
            causal: false,
        })
    }
}

fn requests() -> impl Iterator<Item = (Evidence, Aggregation)> {
    let ways = [Aggregation::Sum, Aggregation::Max, Aggregation::Vote];
    let by_attention = [Evidence::Memory, Evidence::Window].into_iter();
    // Mass is a sum whatever is asked for.
    by_attention.chain([Evidence::Mass]).flat_map(move |evidence| ways.map(|way| (evidence, way)))
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    // A NaN must not pass for a small difference.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |worst, x| if x <= worst { worst } else { x })
}

fn rng() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// The heads of E10.
const HEADS: [[usize; 2]; 5] = [[9, 3], [14, 2], [15, 5], [16, 8], [32, 8]];
const ARCHITECTURES: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

/// The outcome of each number of ranks that the model can be shared out to, the whole model's first.
fn outcomes(
    config: &ModelConfig,
    format: Format,
    rng: &mut StdRng,
    worlds: Range<usize>,
) -> Result<Vec<(usize, Outcome)>> {
    let folder = tempfile::tempdir()?;
    let checkpoint = checkpoint(&folder.path().join("model.gguf"), config, format, rng)?;
    ensure!(checkpoint.config() == config, "{:?}", checkpoint.config());
    let script = Script::new(rng, config.vocab);
    let mut outcomes = Vec::new();
    for world in worlds {
        match plan(&checkpoint, world) {
            Ok(_) => {
                let run =
                    in_group(&checkpoint, world, options(80, RowType::F32), |rank| script.run(rank.executor));
                outcomes.push((world, run.with_context(|| format!("{config:?} {format:?}, {world} ranks"))?));
            }
            Err(error) => println!("{world} ranks: {error}"),
        }
    }
    Ok(outcomes)
}

/// Logits and scores of any heads have the bits of one rank's.
#[test]
fn e10_any_heads_on_any_number_of_ranks_give_the_logits_of_one() -> Result<()> {
    let mut rng = rng();
    for (index, [heads, kv_heads]) in HEADS.into_iter().enumerate() {
        let config = config(ARCHITECTURES[index % 3], [heads, kv_heads, 8]);
        let outcomes = outcomes(&config, Format::F32, &mut rng, 1..9)?;
        ensure!(outcomes.len() == 8, "f32 is cut anywhere");
        let one = &outcomes[0].1;
        ensure!(
            one.scores.len() == 9 && one.scores.iter().all(|scores| scores.values.iter().any(|&x| x > 0))
        );
        for (world, outcome) in &outcomes[1..] {
            ensure!(
                outcome == one,
                "{heads}/{kv_heads} on {world} ranks: {}",
                worst(&outcome.logits, &one.logits)
            );
        }
    }
    Ok(())
}

/// Quantised matrices are cut between blocks, which moves the cuts of narrow heads. Formats that our kernels multiply
/// have the bits of one rank's all the same.
#[test]
fn e10_quantised_matrices_are_cut_between_blocks() -> Result<()> {
    let mut rng = rng();
    for (format, head_dim, ranks) in [(Format::Q4_1, 32, 8), (Format::Q8_0, 16, 7), (Format::Q6K, 64, 3)] {
        for (index, [heads, kv_heads]) in [[14, 2], [16, 8], [32, 8]].into_iter().enumerate() {
            let sized = config(ARCHITECTURES[index % 3], [heads, kv_heads, head_dim]);
            if !sized.query_width().is_multiple_of(format.block().0) {
                continue;
            }
            // Rows are whole blocks too. Of candle's formats one layer: see `near`.
            let candle = format == Format::Q6K;
            let (hidden, ffn, layers) = if candle { (256, 1024, 1) } else { (64, 288, 2) };
            let config = ModelConfig { layers, hidden, ffn, vocab: 101, ..sized };
            let outcomes = outcomes(&config, format, &mut rng, 1..9)?;
            ensure!(outcomes.len() >= ranks, "{format:?} {heads}/{kv_heads}: {} groups", outcomes.len());
            let one = &outcomes[0].1;
            for (world, outcome) in &outcomes[1..] {
                let alike = if candle { near(one, outcome, config.vocab) } else { outcome == one };
                ensure!(alike, "{format:?} {heads}/{kv_heads} on {world} ranks");
            }
        }
    }
    Ok(())
}

/// Candle adds up a rank's columns in f32. Activations are rounded to int8 before a product, and a sum that differs in
/// its last bit may be rounded to the other side, which moves logits by more than 1e-4: so a few rows may be off by as
/// much as rounding is, and most may not. In a second layer a key or value that moved would move all later rows.
fn near(one: &Outcome, many: &Outcome, vocab: usize) -> bool {
    let rows = one.logits.chunks(vocab).zip(many.logits.chunks(vocab));
    let mut errors: Vec<f32> = rows.map(|(a, b)| worst(a, b)).collect();
    errors.sort_unstable_by(f32::total_cmp);
    errors[errors.len() / 2] <= 1e-4 && errors[errors.len() - 1] <= 0.2
}

#[test]
fn a_group_too_large_for_a_checkpoint_is_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = config(Architecture::Qwen3, [16, 8, 16]);
    let checkpoint = checkpoint(&folder.path().join("model.gguf"), &config, Format::Q8_0, &mut rng())?;
    // 256 columns of the output are 8 blocks of 32; 288 inner columns are 9.
    ensure!(plan(&checkpoint, 8).is_ok());
    let error = plan(&checkpoint, 9).err().context("a refusal")?;
    let error = error.downcast_ref::<ShardError>().context("a typed refusal")?;
    ensure!(error.to_string().contains("blk.0.attn_output.weight"), "{error}");
    ensure!(error.code() == ErrorCode::Invalid);
    Ok(())
}

/// A number on one rank that is none is counted with the scores of that event, whatever the aggregation.
#[test]
fn r8_bad_scores_of_one_rank_reach_the_leader() -> Result<()> {
    let mut rng = rng();
    let folder = tempfile::tempdir()?;
    let config = config(Architecture::Llama, [9, 3, 8]);
    let checkpoint = checkpoint(&folder.path().join("model.gguf"), &config, Format::F32, &mut rng)?;
    let script = Script::new(&mut rng, config.vocab);
    for bad in 0..3 {
        let counts = in_group(&checkpoint, 3, options(80, RowType::F32), |rank| {
            let mut executor = rank.executor;
            script.step(&mut executor, 0..ROWS + DECODED)?;
            if executor.model().shard().rank == bad {
                executor.kv_mut().poison(script.slots[0]);
            }
            let mut counts = Vec::new();
            for way in [Aggregation::Sum, Aggregation::Max, Aggregation::Vote] {
                let scores = script.score(&mut executor, Evidence::Window, way)?;
                counts.extend(scores.map(|scores| scores.non_finite));
            }
            Ok(counts)
        })?;
        // All candidates of all layers and of the rank's three query heads.
        let all = (config.layers * 3 * (ROWS + DECODED) / 2) as u64;
        ensure!(counts == [all; 3], "rank {bad}: {counts:?}, not {all}");
    }
    Ok(())
}

/// A fault at any call of a step, or at a score, is an error on every rank, and one that may be tried again elsewhere.
#[test]
fn a_fault_at_any_call_ends_the_step_on_every_rank() -> Result<()> {
    let mut rng = rng();
    let folder = tempfile::tempdir()?;
    let config = config(Architecture::Qwen2, [9, 3, 8]);
    let checkpoint = checkpoint(&folder.path().join("model.gguf"), &config, Format::F32, &mut rng)?;
    let script = Script::new(&mut rng, config.vocab);
    // The embedding, two sums per layer, the logits, and a score.
    let calls = 2 + 2 * config.layers as u64 + 1;
    for at in 0..calls {
        let faulty = |rank: ThreadRank| -> Box<dyn Collective> {
            if rank.rank() == 1 {
                Box::new(Faulty::new(Box::new(rank), at, Fault::CorruptTag))
            } else {
                Box::new(rank)
            }
        };
        let ends = on_each_rank(&checkpoint, 3, options(80, RowType::F32), faulty, |rank| {
            let mut executor = rank.executor;
            let step = script.step(&mut executor, 0..ROWS);
            let ended = step.and_then(|_| script.score(&mut executor, Evidence::Mass, Aggregation::Sum));
            Ok(ended.err())
        })?;
        for (rank, end) in ends.into_iter().enumerate() {
            let error = end?.with_context(|| format!("rank {rank} goes on after a fault at call {at}"))?;
            ensure!(matches!(error, StepError::Group(_)), "{error}");
            ensure!(error.code() == ErrorCode::Unavailable);
        }
    }
    Ok(())
}

/// The demo model on two and three ranks: the tokens of one, and what a decode step sends.
#[test]
fn the_demo_model_decodes_alike_on_any_number_of_ranks() -> Result<()> {
    const PROMPT: [u32; 12] = [1, 4093, 198, 504, 3575, 282, 4649, 314, 253, 1379, 1838, 30];
    let checkpoint = Checkpoint::open(fixtures::demo_model()?)?;
    let mut one = Vec::new();
    for world in 1..4 {
        let tokens = in_group(&checkpoint, world, options(256, RowType::F16), |rank| {
            let layers = rank.executor.config().layers as u64;
            let mut engine = Engine::over(rank.executor, 3)?;
            let mut session = Session::default();
            let mut logits = engine.feed(&mut session, &PROMPT, LogitRows::Last)?;
            let mut tokens = Vec::new();
            for _ in 0..32 {
                let token = if rank.relay.leads() { argmax(logits.row(0)) } else { 0 };
                let token = u32::try_from(rank.relay.share(vec![i64::from(token)])?[0])?;
                tokens.push(token);
                let before = engine.executor.traffic();
                logits = engine.feed(&mut session, &[token], LogitRows::Last)?;
                let after = engine.executor.traffic();
                let calls = if world == 1 { 0 } else { 2 * layers + 2 };
                ensure!(after.calls - before.calls == calls, "{} calls", after.calls - before.calls);
                if rank.relay.leads() && tokens.len() == 1 {
                    println!("{world} ranks: {calls} calls, {} bytes", after.bytes - before.bytes);
                    println!("{} bytes of weights per step", engine.executor.model().bytes_per_step());
                }
            }
            Ok(tokens)
        })?;
        if world == 1 {
            one = tokens;
        } else {
            ensure!(tokens == one, "{world} ranks: {tokens:?}, not {one:?}");
        }
    }
    Ok(())
}

//! How fast a model runs on this machine: prefill, decode at several depths, and a warm turn, each beside what the
//! machine could do.
//!
//! Promises medians over several runs, on a shuffled pool such as a worker's becomes, with nothing cached between runs
//! but the weights. Never reads the operating system's clock: it takes one.

mod measure;
mod report;

use std::num::NonZeroUsize;
use std::sync::Arc;

use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode};
use hawser_device::DeviceError;
use hawser_device::kv::RowType;
use hawser_device::limits;
use hawser_device::threads::Threads;
use thiserror::Error;

pub use report::{Decode, MachineLimits, Prefill, Report, Run, WarmTurn};

use crate::executor::StepError;
use crate::layers::Model;
use measure::Bench;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// One run per entry.
    pub threads: Vec<NonZeroUsize>,
    pub row_type: RowType,
    /// Lengths of prompts, in tokens.
    pub prefill: Vec<usize>,
    /// Live positions before the decoded token. Those beyond the model's context are left out.
    pub depths: Vec<usize>,
    /// Session length and added tokens of the warm turn.
    pub warm_turn: Option<(usize, usize)>,
    /// Seed of tokens and of the pool's order.
    pub seed: u64,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            threads: [1, 2].into_iter().filter_map(NonZeroUsize::new).collect(),
            row_type: RowType::F16,
            prefill: vec![128, 512, 2048],
            depths: vec![0, 1024, 4096, 7500],
            warm_turn: Some((4000, 50)),
            seed: 1,
        }
    }
}

/// Why a bench ended early.
#[derive(Debug, Error)]
pub enum BenchError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Coded for BenchError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Device(error) => error.code(),
            Self::Step(error) => error.code(),
        }
    }
}

/// Measures `model`; `progress` is told what is measured next.
///
/// # Errors
/// [`BenchError`]: no memory for the pool, or a step that fails.
pub fn run(
    model: &Arc<Model>,
    options: &BenchOptions,
    clock: &Clock,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let mut runs = Vec::new();
    for &threads in &options.threads {
        progress(&format!("{threads} threads: limits of the machine"));
        let limits = MachineLimits::from(limits::measure(&Threads::new(threads), clock)?);
        let mut bench = Bench::new(model, options, threads, clock)?;
        let mut run =
            Run { threads: threads.get(), limits, prefill: Vec::new(), decode: Vec::new(), warm_turn: None };
        for &tokens in &options.prefill {
            progress(&format!("{threads} threads: prefill of {tokens} tokens"));
            if let Some(seconds) = bench.prefill(tokens)? {
                run.prefill.push(Prefill::new(model, &run.limits, tokens, seconds));
            }
        }
        for &depth in &options.depths {
            progress(&format!("{threads} threads: decode at depth {depth}"));
            if let Some(seconds) = bench.decode(depth)? {
                run.decode.push(Decode::new(model, options.row_type, &run.limits, depth, seconds));
            }
        }
        if let Some((session, added)) = options.warm_turn {
            progress(&format!("{threads} threads: a turn of {added} tokens after {session}"));
            run.warm_turn = bench.warm_turn(session, added)?;
        }
        runs.push(run);
    }
    Ok(Report { row_type: format!("{:?}", options.row_type), weight_bytes: model.bytes_per_step(), runs })
}

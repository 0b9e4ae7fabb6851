//! Runs steps and takes their time.

use std::num::NonZeroUsize;
use std::sync::Arc;

use hawser_common::clock::Clock;
use hawser_common::{Position, SlotId};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::report::WarmTurn;
use super::{BenchError, BenchOptions};
use crate::executor::{Batch, Executor, ExecutorOptions, LogitRows, Sequence, StepError};
use crate::layers::Model;

/// Tokens of a prefill step: what a scheduler gives a long prompt at a time.
const CHUNK: usize = 512;
/// Runs per measurement: at least so many, and so many seconds unless that takes too many.
const LEAST_RUNS: usize = 3;
const MOST_RUNS: usize = 64;
const SECONDS: f64 = 1.0;

/// An executor whose pool is split in two: one long session, and slots that are written again and again.
pub(super) struct Bench<'a> {
    executor: Executor,
    clock: &'a Clock,
    rng: StdRng,
    /// Slots of the long session, filled up to `filled`.
    session: Vec<SlotId>,
    filled: usize,
    spare: Vec<SlotId>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        model: &Arc<Model>,
        options: &BenchOptions,
        threads: NonZeroUsize,
        clock: &'a Clock,
    ) -> Result<Self, BenchError> {
        let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let (warm, added) = options.warm_turn.unwrap_or((0, 0));
        let context = model.config().context_length;
        let long = most(&options.depths).max(warm).min(context);
        let spare = most(&options.prefill).max(warm + added).min(context).max(1);
        let slots = 1 + long + spare;
        let mut rng = StdRng::seed_from_u64(options.seed);
        let last = u32::try_from(slots).unwrap_or(u32::MAX);
        let mut session: Vec<_> = (1..last).map(SlotId).collect();
        session.shuffle(&mut rng);
        let spare = session.split_off(long);
        let options = ExecutorOptions { slots, row_type: options.row_type, threads };
        let executor = Executor::new(Arc::clone(model), options)?;
        Ok(Self { executor, clock, rng, session, filled: 0, spare })
    }

    /// Seconds to prefill `tokens` tokens from nothing; `None` where the context is too short.
    pub(super) fn prefill(&mut self, tokens: usize) -> Result<Option<f64>, BenchError> {
        if !self.fits(tokens) {
            return Ok(None);
        }
        self.median(|bench| bench.cold(tokens)).map(Some)
    }

    /// Seconds to decode one token after `depth` live positions; `None` where the context is too short.
    pub(super) fn decode(&mut self, depth: usize) -> Result<Option<f64>, BenchError> {
        if !self.fits(depth + 1) {
            return Ok(None);
        }
        self.fill(depth)?;
        self.median(|bench| bench.after(depth, 1)).map(Some)
    }

    pub(super) fn warm_turn(&mut self, session: usize, added: usize) -> Result<Option<WarmTurn>, BenchError> {
        if !self.fits(session + added) {
            return Ok(None);
        }
        self.fill(session)?;
        let warm = self.median(|bench| bench.after(session, added))?;
        let cold = self.median(|bench| bench.cold(session + added))?;
        Ok(Some(WarmTurn::new(session, added, warm, cold)))
    }

    fn fits(&self, positions: usize) -> bool {
        positions <= self.executor.config().context_length
    }

    /// Makes the long session at least `depth` positions long.
    fn fill(&mut self, depth: usize) -> Result<(), BenchError> {
        while self.filled < depth {
            let until = depth.min(self.filled + CHUNK);
            let (context, slots) = self.session[..until].split_at(self.filled);
            step(&mut self.executor, &mut self.rng, context, slots, LogitRows::None)?;
            self.filled = until;
        }
        Ok(())
    }

    fn cold(&mut self, tokens: usize) -> Result<(), BenchError> {
        let mut done = 0;
        while done < tokens {
            let until = tokens.min(done + CHUNK);
            let (context, slots) = self.spare[..until].split_at(done);
            let logits = if until == tokens { LogitRows::Last } else { LogitRows::None };
            step(&mut self.executor, &mut self.rng, context, slots, logits)?;
            done = until;
        }
        Ok(())
    }

    /// Adds tokens behind the first `depth` positions of the long session, which stays as it is.
    fn after(&mut self, depth: usize, tokens: usize) -> Result<(), BenchError> {
        let (context, slots) = (&self.session[..depth], &self.spare[..tokens]);
        step(&mut self.executor, &mut self.rng, context, slots, LogitRows::Last)
    }

    /// Median seconds of `work`, after one run that is not counted.
    fn median(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        work(self)?;
        let mut seconds = Vec::new();
        while seconds.len() < LEAST_RUNS
            || (seconds.len() < MOST_RUNS && seconds.iter().sum::<f64>() < SECONDS)
        {
            let start = self.clock.now();
            work(self)?;
            seconds.push(self.clock.now().since(start).as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[seconds.len() / 2])
    }
}

/// One step of one sequence of random tokens.
fn step(
    executor: &mut Executor,
    rng: &mut StdRng,
    context: &[SlotId],
    slots: &[SlotId],
    logits: LogitRows,
) -> Result<(), BenchError> {
    let vocab = u32::try_from(executor.config().vocab).unwrap_or(u32::MAX);
    let tokens: Vec<u32> = slots.iter().map(|_| rng.random_range(0..vocab)).collect();
    let positions = (context.len()..).take(slots.len());
    let positions: Vec<_> =
        positions.map(|position| Position(u32::try_from(position).unwrap_or(u32::MAX))).collect();
    let sequences =
        [Sequence { rows: 0..slots.len(), context, after: 0, positions: &[], logits, observe: None }];
    executor
        .step(&Batch { tokens: &tokens, positions: &positions, slots, sequences: &sequences })
        .map(|_| ())
        .map_err(|error: StepError| error.into())
}

//! Sessions over an executor with a shuffled pool: the least that is needed to run a model.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Result;
use hawser_common::{Position, SlotId};
use hawser_device::collective::StepTag;
use hawser_device::kv::RowType;
use hawser_model::executor::{Batch, Executor, ExecutorOptions, LogitRows, Logits, Sequence};
use hawser_model::layers::Model;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// An executor and its free slots, in random order.
pub(crate) struct Engine {
    pub(crate) executor: Executor,
    free: Vec<SlotId>,
    steps: u64,
}

/// One session's live slots, in position order.
#[derive(Clone, Default)]
pub(crate) struct Session {
    live: Vec<SlotId>,
}

/// Tokens to add to a session in a step.
pub(crate) struct Feed<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) tokens: &'a [u32],
    pub(crate) logits: LogitRows,
}

impl Engine {
    pub(crate) fn new(model: &Arc<Model>, slots: usize, row_type: RowType, seed: u64) -> Result<Self> {
        let threads = NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN);
        Self::over(Executor::new(Arc::clone(model), ExecutorOptions { slots, row_type, threads })?, seed)
    }

    /// On every rank of a group the free slots are in the same order.
    pub(crate) fn over(executor: Executor, seed: u64) -> Result<Self> {
        let slots = executor.kv().shape().slots;
        let mut free: Vec<_> = (1..u32::try_from(slots)?).map(SlotId).collect();
        free.shuffle(&mut StdRng::seed_from_u64(seed));
        Ok(Self { executor, free, steps: 0 })
    }

    /// One step over several sessions.
    pub(crate) fn step(&mut self, feeds: &mut [Feed<'_>]) -> Result<Logits> {
        let (mut tokens, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = Vec::new();
        for feed in feeds.iter() {
            let from = tokens.len();
            for (offset, token) in feed.tokens.iter().enumerate() {
                tokens.push(*token);
                positions.push(Position(u32::try_from(feed.session.live.len() + offset)?));
                slots.push(self.free.pop().ok_or_else(|| anyhow::anyhow!("the test's pool is too small"))?);
            }
            rows.push(from..tokens.len());
        }
        let sequences: Vec<_> = feeds
            .iter()
            .zip(&rows)
            .map(|(feed, rows)| Sequence {
                rows: rows.clone(),
                context: &feed.session.live,
                logits: feed.logits,
                after: 0,
                positions: &[],
                observe: None,
            })
            .collect();
        let batch = Batch { tokens: &tokens, positions: &positions, slots: &slots, sequences: &sequences };
        self.steps += 1;
        self.executor.begin(StepTag { epoch: 1, step: self.steps });
        let logits = self.executor.step(&batch)?;
        for (feed, rows) in feeds.iter_mut().zip(rows) {
            feed.session.live.extend(&slots[rows]);
        }
        Ok(logits)
    }

    /// Adds tokens to one session.
    pub(crate) fn feed(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        logits: LogitRows,
    ) -> Result<Logits> {
        self.step(&mut [Feed { session, tokens, logits }])
    }

    /// Fills the dead slot and every free one with NaN.
    pub(crate) fn poison(&mut self) {
        self.executor.kv_mut().poison(SlotId::DEAD);
        for slot in &self.free {
            self.executor.kv_mut().poison(*slot);
        }
    }

    /// Returns a session's slots to the pool.
    pub(crate) fn close(&mut self, session: Session) {
        self.free.extend(session.live);
    }

    /// Greedy continuation of a prompt, `count` tokens, each decoded alone.
    pub(crate) fn greedy(&mut self, prompt: &[u32], count: usize) -> Result<Vec<u32>> {
        let mut session = Session::default();
        let mut logits = self.feed(&mut session, prompt, LogitRows::Last)?;
        let mut tokens = Vec::new();
        for _ in 0..count {
            let token = argmax(logits.row(0));
            tokens.push(token);
            logits = self.feed(&mut session, &[token], LogitRows::Last)?;
        }
        self.close(session);
        Ok(tokens)
    }
}

/// Index of the largest value; the first of equal ones.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    u32::try_from(best).unwrap_or(u32::MAX)
}

/// Cuts `tokens` at random places.
pub(crate) fn chunks<'a>(rng: &mut StdRng, mut tokens: &'a [u32]) -> Vec<&'a [u32]> {
    let mut chunks = Vec::new();
    while !tokens.is_empty() {
        let (chunk, rest) = tokens.split_at(rng.random_range(1..=tokens.len()));
        chunks.push(chunk);
        tokens = rest;
    }
    chunks
}

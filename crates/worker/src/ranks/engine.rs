//! What a rank computes with: the model's executor, or a simulation of one. One call per step, never one per kernel.

use std::fmt::Debug;
use std::time::Duration;

use hawser_common::SlotId;
use hawser_device::collective::{CallTimer, StepTag, Traffic};
use hawser_model::executor::{
    Batch, Executor, Logits, MemoryId, MemoryState, Recursion, ScoreRequest, Scores, StepError,
};

use crate::scheduler::RankChange;

/// What an engine says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineFigures {
    /// Matrices, as they lie in memory.
    pub weight_bytes: u64,
    /// KV rows, the archive's included.
    pub kv_bytes: u64,
    pub threads: u64,
    /// Spent in calls to other ranks, waiting for them included.
    pub across: Duration,
}

/// Carries out what a rank is told, in order. Decides nothing.
pub trait Engine: Send + Debug {
    /// The calls that follow belong to this step of the group.
    fn begin(&mut self, step: StepTag);

    /// Changes what is held besides the rows of a step.
    fn change(&mut self, change: &RankChange);

    /// Runs the rows of a batch and gives the logits that it asks for.
    ///
    /// # Errors
    /// [`StepError`]; see [`Executor::step`].
    fn step(&mut self, batch: &Batch<'_>) -> Result<Logits, StepError>;

    /// Ends a request's query span: it becomes part of the memory.
    fn remember(&mut self, memory: MemoryId, recursion: Recursion);

    /// Scores the candidates of a prune; `None` where nothing is remembered to score by.
    ///
    /// # Errors
    /// [`StepError`]; see [`Executor::score`].
    fn score(&mut self, request: &ScoreRequest<'_>) -> Result<Option<Scores>, StepError>;

    fn figures(&self) -> EngineFigures;

    /// Bytes of one slot in all layers and heads of the model, and numbers of one query row.
    fn sizes(&self) -> (usize, usize);

    /// Rows of a session that leaves, as the whole model has them; empty on ranks that do not lead.
    ///
    /// # Errors
    /// [`StepError`]; see [`Executor::read_rows`].
    fn read_rows(&mut self, slots: &[SlotId]) -> Result<Vec<u8>, StepError>;

    /// Stores rows of a session that enters.
    fn write_rows(&mut self, slots: &[SlotId], bytes: &[u8]);

    /// What is remembered of a session that leaves.
    ///
    /// # Errors
    /// [`StepError`]; see [`Executor::read_memory`].
    fn read_memory(&mut self, id: MemoryId) -> Result<Option<MemoryState>, StepError>;

    /// Remembers of a session that enters what was remembered elsewhere.
    fn write_memory(&mut self, id: MemoryId, state: &MemoryState);

    /// Times its calls to other ranks, where there are any.
    fn call_timer(&self) -> Option<&CallTimer>;

    /// What it has sent to other ranks.
    fn traffic(&self) -> Traffic;
}

impl Engine for Executor {
    fn begin(&mut self, step: StepTag) {
        Self::begin(self, step);
    }

    fn change(&mut self, change: &RankChange) {
        match change {
            RankChange::Begin(id) => self.begin_memory(*id),
            RankChange::TakeBack(id) => self.take_back_memory(*id),
            RankChange::Fork { from, to } => self.fork_memory(*from, *to),
            RankChange::Forget(id) => self.forget_memory(*id),
            RankChange::Move(row) => self.move_row(row),
        }
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<Logits, StepError> {
        Self::step(self, batch)
    }

    fn remember(&mut self, memory: MemoryId, recursion: Recursion) {
        Self::remember(self, memory, recursion);
    }

    fn score(&mut self, request: &ScoreRequest<'_>) -> Result<Option<Scores>, StepError> {
        Self::score(self, request)
    }

    fn figures(&self) -> EngineFigures {
        EngineFigures {
            weight_bytes: self.model().matrix_bytes() as u64,
            kv_bytes: self.kv().bytes() as u64,
            threads: self.thread_count() as u64,
            across: Self::call_timer(self).map_or(Duration::ZERO, CallTimer::spent),
        }
    }

    fn sizes(&self) -> (usize, usize) {
        (self.slot_bytes(), self.query_numbers())
    }

    fn read_rows(&mut self, slots: &[SlotId]) -> Result<Vec<u8>, StepError> {
        Self::read_rows(self, slots)
    }

    fn write_rows(&mut self, slots: &[SlotId], bytes: &[u8]) {
        Self::write_rows(self, slots, bytes);
    }

    fn read_memory(&mut self, id: MemoryId) -> Result<Option<MemoryState>, StepError> {
        Self::read_memory(self, id)
    }

    fn write_memory(&mut self, id: MemoryId, state: &MemoryState) {
        Self::write_memory(self, id, state);
    }

    fn call_timer(&self) -> Option<&CallTimer> {
        Self::call_timer(self)
    }

    fn traffic(&self) -> Traffic {
        Self::traffic(self)
    }
}

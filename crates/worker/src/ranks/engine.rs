//! What a rank computes with: the model's executor, or a simulation of one. One call per step, never one per kernel.

use std::fmt::Debug;

use hawser_device::collective::StepTag;
use hawser_model::executor::{Batch, Executor, Logits, MemoryId, Recursion, ScoreRequest, Scores, StepError};

use crate::scheduler::RankChange;

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
}

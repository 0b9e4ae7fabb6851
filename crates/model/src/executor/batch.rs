//! What a step is asked to do, and its checks.

use std::ops::Range;

use hawser_common::{Coded, ErrorCode, Position, SlotId};
use hawser_device::attention::Span;
use hawser_device::collective::CollectiveError;
use thiserror::Error;

use super::memory::Observe;
use crate::layers::ForwardError;

/// Rows of one step, one row per token. The four slices over rows have one length.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub tokens: &'a [u32],
    /// Fixes each row's RoPE phase.
    pub positions: &'a [Position],
    /// Where each row's key and value are written: live, distinct, and in no sequence's context but for
    /// [`Sequence::after`].
    pub slots: &'a [SlotId],
    /// Cover all rows, in order, without overlap.
    pub sequences: &'a [Sequence<'a>],
}

/// Consecutive rows of one session: a prefill chunk, or one row of decode.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Live slots of the positions before the first row, in position order.
    pub context: &'a [SlotId],
    /// So many rows before these are of the same session: the context may hold their slots.
    pub after: usize,
    /// Their positions, where attention mass is observed; else it may be empty.
    pub positions: &'a [Position],
    /// For which of the rows logits are wanted.
    pub logits: LogitRows,
    /// What is remembered of the rows' queries, for retention.
    pub observe: Option<Observe>,
}

/// Which rows of a sequence go through the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    None,
    Last,
    All,
}

/// A step that was refused, with nothing written, or that failed underway ([`StepError::Product`],
/// [`StepError::Group`]).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StepError {
    #[error("{tokens} tokens, {positions} positions and {slots} slots: one of each per row is needed")]
    Lengths { tokens: usize, positions: usize, slots: usize },
    #[error(
        "sequence {sequence} has the rows {rows:?}; rows from {expected} on, and at least one, are expected"
    )]
    Rows { sequence: usize, rows: Range<usize>, expected: usize },
    #[error("the sequences cover {covered} of {rows} rows")]
    Uncovered { covered: usize, rows: usize },
    #[error("token {token} of row {row} is outside the vocabulary of {vocab} tokens")]
    Token { row: usize, token: u32, vocab: usize },
    #[error("position {position} of row {row} is outside the context of {context_length} positions")]
    Position { row: usize, position: u32, context_length: usize },
    #[error("slot {slot} of row {row} is the dead slot, outside the pool of {slots} slots, or written twice")]
    WriteSlot { row: usize, slot: u32, slots: usize },
    #[error(
        "slot {slot} in the context of sequence {sequence} is dead, outside the pool of {slots} slots, or written in this step"
    )]
    ContextSlot { sequence: usize, slot: u32, slots: usize },
    #[error("a matrix product failed: {reason}")]
    Product { reason: String },
    /// What crosses ranks did not arrive: the group is over.
    #[error("the group of ranks failed: {0}")]
    Group(#[from] CollectiveError),
    #[error("the ranks' scores are damaged: their check says {expected}, they say {found}")]
    Scores { expected: i64, found: i64 },
}

impl Coded for StepError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Token { .. } | Self::Position { .. } => ErrorCode::Invalid,
            Self::Group(error) => error.code(),
            Self::Scores { .. } => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

impl From<candle_core::Error> for StepError {
    fn from(error: candle_core::Error) -> Self {
        Self::Product { reason: error.to_string() }
    }
}

impl From<ForwardError> for StepError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Product(error) => error.into(),
            ForwardError::Group(error) => error.into(),
        }
    }
}

/// What a batch is checked against, and the marks that find a slot used twice.
#[derive(Debug)]
pub(super) struct Checker {
    pub(super) vocab: usize,
    pub(super) context_length: usize,
    /// Per slot, the last batch that wrote it, and by which row.
    written: Vec<(u64, usize)>,
    batch: u64,
}

impl Checker {
    pub(super) fn new(vocab: usize, context_length: usize, slots: usize) -> Self {
        Self { vocab, context_length, written: vec![(0, 0); slots], batch: 0 }
    }

    /// Checks everything that the kernels take for granted.
    pub(super) fn check(&mut self, batch: &Batch<'_>) -> Result<(), StepError> {
        let (tokens, positions, slots) = (batch.tokens.len(), batch.positions.len(), batch.slots.len());
        if positions != tokens || slots != tokens {
            return Err(StepError::Lengths { tokens, positions, slots });
        }
        for (row, &token) in batch.tokens.iter().enumerate() {
            if token as usize >= self.vocab {
                return Err(StepError::Token { row, token, vocab: self.vocab });
            }
        }
        for (row, &position) in batch.positions.iter().enumerate() {
            if position.index() >= self.context_length {
                let context_length = self.context_length;
                return Err(StepError::Position { row, position: position.0, context_length });
            }
        }
        self.check_slots(batch)?;
        check_rows(batch)
    }

    fn check_slots(&mut self, batch: &Batch<'_>) -> Result<(), StepError> {
        self.batch += 1;
        let slots = self.written.len();
        for (row, &slot) in batch.slots.iter().enumerate() {
            match self.written.get_mut(slot.index()) {
                Some(last) if !slot.is_dead() && last.0 != self.batch => *last = (self.batch, row),
                _ => return Err(StepError::WriteSlot { row, slot: slot.0, slots }),
            }
        }
        for (index, sequence) in batch.sequences.iter().enumerate() {
            // Keys and values of all rows are written before any row attends.
            let start = sequence.rows.start;
            let earlier = start.saturating_sub(sequence.after)..start;
            let is_there = |&(last, row): &(u64, usize)| last != self.batch || earlier.contains(&row);
            let readable =
                |slot: &SlotId| !slot.is_dead() && self.written.get(slot.index()).is_some_and(is_there);
            if let Some(slot) = sequence.context.iter().find(|slot| !readable(slot)) {
                return Err(StepError::ContextSlot { sequence: index, slot: slot.0, slots });
            }
        }
        Ok(())
    }
}

fn check_rows(batch: &Batch<'_>) -> Result<(), StepError> {
    let mut expected = 0;
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let rows = sequence.rows.clone();
        if rows.start != expected || rows.is_empty() || rows.end > batch.tokens.len() {
            return Err(StepError::Rows { sequence: index, rows, expected });
        }
        expected = rows.end;
    }
    if expected == batch.tokens.len() {
        Ok(())
    } else {
        Err(StepError::Uncovered { covered: expected, rows: batch.tokens.len() })
    }
}

impl<'a> Batch<'a> {
    /// The rows of each sequence and what they attend to.
    pub(super) fn spans(&self) -> Vec<Span<'a>> {
        let span = |sequence: &Sequence<'a>| Span {
            rows: sequence.rows.clone(),
            context: sequence.context,
            own: &self.slots[sequence.rows.clone()],
        };
        self.sequences.iter().map(span).collect()
    }

    /// The rows whose logits are wanted, ascending.
    pub(super) fn wanted(&self) -> Vec<usize> {
        let rows = |sequence: &Sequence<'_>| match sequence.logits {
            LogitRows::None => 0..0,
            LogitRows::Last => sequence.rows.end - 1..sequence.rows.end,
            LogitRows::All => sequence.rows.clone(),
        };
        self.sequences.iter().flat_map(rows).collect()
    }
}

#[cfg(test)]
mod tests;

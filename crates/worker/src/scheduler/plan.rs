//! What one step runs: rows in order, and nothing left to decide.

use std::ops::Range;

use hawser_common::{Position, SlotId};

/// One request in the scheduler, unique within a driver's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Rows of one step. `tokens`, `positions` and `slots` have one entry per row.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    pub tokens: Vec<u32>,
    pub positions: Vec<Position>,
    /// Where each row's KV is written: fresh slots, each held by its sequence only.
    pub slots: Vec<SlotId>,
    pub entries: Vec<PlanEntry>,
}

/// The consecutive rows of one sequence.
#[derive(Debug, PartialEq, Eq)]
pub struct PlanEntry {
    pub sequence: SequenceId,
    pub rows: Range<usize>,
    /// The last row is the sequence's newest token: its logits give the next one.
    pub sample: bool,
}

impl StepPlan {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

//! What one step runs: rows in order, and nothing left to decide.

use std::ops::Range;

use hawser_common::{Position, SlotId};
use hawser_kv::RowMove;
use hawser_model::executor::{MemoryId, Observe, Recursion};
use serde::{Deserialize, Serialize};

use crate::ranks::{TableChange, Traced};

/// One request in the scheduler, unique within a driver's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId(pub u64);

/// Rows of one step. `tokens`, `positions` and `slots` have one entry per row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// What the ranks do before the step, in order.
    pub changes: Vec<RankChange>,
    /// What changes of the sequences' tables, before the step; the step's own rows are added by running it.
    pub tables: Vec<TableChange>,
    /// Of the sequences whose tables are set, those whose turn is traced.
    pub traces: Vec<Traced>,
    pub tokens: Vec<u32>,
    pub positions: Vec<Position>,
    /// Where each row's KV is written: fresh slots, each held by its sequence only.
    pub slots: Vec<SlotId>,
    pub entries: Vec<PlanEntry>,
}

/// The consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanEntry {
    pub sequence: SequenceId,
    pub rows: Range<usize>,
    pub kind: EntryKind,
    /// The last row is the sequence's newest token: its logits give the next one.
    pub sample: bool,
    /// What is remembered of the rows' queries.
    pub observe: Option<Observe>,
    /// The query span ends with these rows: after the step it becomes part of the memory.
    pub remember: Option<Recursion>,
    /// A prune or a revival follows the step: scores are asked for with [`super::Scheduler::scoring`] and
    /// [`super::Scheduler::revival`].
    pub prune: bool,
}

/// What rows are to their sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// They follow what it has.
    Next,
    /// Rows of a hint: they see what the sequence's next row sees, and leave nothing behind.
    Hint,
    /// Rows of evicted positions, computed again. Each sees all positions before it: of the table, of these rows, and of
    /// the rows kept aside that are named here, ascending. They enter the table only when a later plan says so.
    Refill { aside: Vec<(Position, SlotId)> },
}

/// A change of what the ranks hold besides the rows of a step: what they remember of queries, and rows that move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankChange {
    /// A request begins, or begins again.
    Begin(MemoryId),
    /// The running request is taken back.
    TakeBack(MemoryId),
    Fork {
        from: MemoryId,
        to: MemoryId,
    },
    Forget(MemoryId),
    Move(RowMove),
}

impl StepPlan {
    /// Whether there is nothing to do, not even to forget.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.changes.is_empty() && self.tables.is_empty()
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

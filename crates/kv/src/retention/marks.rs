//! Who wrote each position, and in which turn: runs over a session's positions.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Where a token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Origin {
    System,
    User,
    Assistant,
    Tool,
    /// Written by the chat template and part of no message.
    Template,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    start: u32,
    origin: Origin,
    turn: u32,
}

/// Marks of all positions of a session, as runs: a turn adds a handful.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    runs: Vec<Run>,
    len: u32,
}

impl Marks {
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Marks the positions from the end up to `end`; nothing where they are marked already.
    pub fn extend_to(&mut self, end: u32, origin: Origin, turn: u32) {
        if end <= self.len {
            return;
        }
        if self.runs.last().is_none_or(|last| (last.origin, last.turn) != (origin, turn)) {
            self.runs.push(Run { start: self.len, origin, turn });
        }
        self.len = end;
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
        self.runs.retain(|run| run.start < len);
    }

    /// Origin and turn of a position. Past the end, those of the last one.
    #[must_use]
    pub fn at(&self, position: u32) -> (Origin, u32) {
        let after = self.runs.partition_point(|run| run.start <= position);
        match after.checked_sub(1).map(|index| self.runs[index]) {
            Some(run) => (run.origin, run.turn),
            None => (Origin::Template, 0),
        }
    }

    /// The turn of the last position.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.turn)
    }

    /// Whether the runs begin at 0, ascend, and end before the length: what only marks from outside can miss.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let starts = || self.runs.iter().map(|run| run.start);
        let begins = starts().next().map_or(self.len == 0, |first| first == 0);
        begins && starts().is_sorted_by(|a, b| a < b) && starts().all(|start| start < self.len)
    }

    /// All runs in order.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = (Range<u32>, Origin, u32)> {
        let ends = self.runs.iter().skip(1).map(|run| run.start).chain([self.len]).collect::<Vec<_>>();
        self.runs
            .iter()
            .zip(ends)
            .map(|(run, end)| (run.start..end, run.origin, run.turn))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

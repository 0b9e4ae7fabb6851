//! A rank's slot tables: which slots each running sequence sees.
//!
//! Owns a copy of the live lists of the leader's slot maps, kept by the changes in plans and by the rows that plans run.
//! Promises that equal histories of plans give equal tables and equal digests. Never decides anything.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use hawser_common::{Position, SlotId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::scheduler::SequenceId;

/// A change of a sequence's table, before a step's rows run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableChange {
    /// The table is as it says; the sequence may be new.
    Set { sequence: SequenceId, rows: Vec<(Position, SlotId)> },
    /// Positions that are live no more, then positions that are live now; both ascending.
    Patch { sequence: SequenceId, gone: Vec<Position>, new: Vec<(Position, SlotId)> },
    /// The sequence runs no more.
    Drop { sequence: SequenceId },
}

/// The live rows of one sequence in position order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    positions: Vec<Position>,
    slots: Vec<SlotId>,
}

impl Table {
    #[must_use]
    pub fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    #[must_use]
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }

    pub(crate) fn append(&mut self, positions: &[Position], slots: &[SlotId]) {
        self.positions.extend_from_slice(positions);
        self.slots.extend_from_slice(slots);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (Position, SlotId)> {
        self.positions.iter().copied().zip(self.slots.iter().copied())
    }

    fn set(&mut self, rows: impl Iterator<Item = (Position, SlotId)>) {
        (self.positions, self.slots) = rows.unzip();
    }

    fn patch(&mut self, gone: &[Position], new: &[(Position, SlotId)]) {
        let left = self.rows().filter(|(position, _)| gone.binary_search(position).is_err());
        let mut rows: Vec<(Position, SlotId)> = left.chain(new.iter().copied()).collect();
        rows.sort_unstable();
        self.set(rows.into_iter());
    }

    /// The patch that makes this table the given one: a change only where they differ.
    pub(crate) fn patch_to(
        &self,
        sequence: SequenceId,
        positions: &[Position],
        slots: &[SlotId],
    ) -> TableChange {
        let wanted = || positions.iter().copied().zip(slots.iter().copied());
        let missing = |row: &(Position, SlotId), rows: &Self| {
            let at = rows.positions.binary_search(&row.0);
            at.map_or(true, |at| rows.slots[at] != row.1)
        };
        let mut target = Self::default();
        target.set(wanted());
        let gone = self.rows().filter(|row| missing(row, &target)).map(|row| row.0).collect();
        let new = wanted().filter(|row| missing(row, self)).collect();
        TableChange::Patch { sequence, gone, new }
    }
}

/// The tables of all sequences that run.
#[derive(Clone, Debug, Default)]
pub struct Tables(BTreeMap<SequenceId, Table>);

impl Tables {
    /// Carries a change out.
    pub fn apply(&mut self, change: &TableChange) {
        match change {
            TableChange::Set { sequence, rows } => {
                self.0.entry(*sequence).or_default().set(rows.iter().copied());
            }
            TableChange::Patch { sequence, gone, new } => {
                self.0.entry(*sequence).or_default().patch(gone, new);
            }
            TableChange::Drop { sequence } => {
                self.0.remove(sequence);
            }
        }
    }

    /// A sequence's table; `None`: no plan has said anything of it.
    #[must_use]
    pub fn find(&self, sequence: SequenceId) -> Option<&Table> {
        self.0.get(&sequence)
    }

    /// Rows that a step ran.
    pub fn append(&mut self, sequence: SequenceId, positions: &[Position], slots: &[SlotId]) {
        self.0.entry(sequence).or_default().append(positions, slots);
    }

    /// A digest of all tables: equal on every rank, or one of them is wrong. Without its highest bit, so that it can be
    /// negated.
    #[must_use]
    pub fn digest(&self) -> i64 {
        let mut hasher = Xxh3::new();
        self.0.hash(&mut hasher);
        i64::try_from(hasher.finish() >> 1).expect("63 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(pairs: &[(u32, u32)]) -> Vec<(Position, SlotId)> {
        pairs.iter().map(|&(position, slot)| (Position(position), SlotId(slot))).collect()
    }

    #[test]
    fn a_patch_leads_from_one_table_to_another() {
        let sequence = SequenceId(3);
        let mut tables = Tables::default();
        tables.apply(&TableChange::Set { sequence, rows: rows(&[(0, 5), (1, 6), (4, 9)]) });
        let before = tables.digest();
        let wanted = rows(&[(0, 5), (2, 8), (4, 7), (6, 10)]);
        let (positions, slots): (Vec<Position>, Vec<SlotId>) = wanted.iter().copied().unzip();
        let patch = tables.find(sequence).unwrap().patch_to(sequence, &positions, &slots);
        let expected = TableChange::Patch {
            sequence,
            gone: [1, 4].map(Position).to_vec(),
            new: rows(&[(2, 8), (4, 7), (6, 10)]),
        };
        assert_eq!(patch, expected);
        tables.apply(&patch);
        assert_eq!(tables.find(sequence).unwrap().slots(), slots);
        assert_ne!(tables.digest(), before);
        tables.append(sequence, &[Position(7)], &[SlotId(1)]);
        assert_eq!(tables.find(sequence).unwrap().positions().len(), 5);
        tables.apply(&TableChange::Drop { sequence });
        assert_eq!(tables.digest(), Tables::default().digest());
    }
}

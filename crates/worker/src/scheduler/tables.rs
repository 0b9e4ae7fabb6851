//! What ranks are told of slot tables: the difference to what they were told before.

use std::collections::BTreeMap;

use super::{EntryKind, Scheduler, SequenceId, StepPlan};
use crate::ranks::{Table, TableChange};

/// What the ranks have of one sequence.
#[derive(Clone, Debug)]
struct Told {
    table: Table,
    /// Of the slot map when the table was last compared with it.
    version: u64,
}

/// What the ranks have.
#[derive(Clone, Debug, Default)]
pub(super) struct ToldTables(BTreeMap<SequenceId, Told>);

impl Scheduler {
    /// Adds to a plan what its ranks need to know of tables, and notes what they will have after it.
    pub(super) fn tell_tables(&mut self, plan: &mut StepPlan) {
        let Self { told, running, .. } = self;
        let ended: Vec<SequenceId> =
            told.0.keys().copied().filter(|id| running.iter().all(|s| s.id != *id)).collect();
        for sequence in ended {
            told.0.remove(&sequence);
            plan.tables.push(TableChange::Drop { sequence });
        }
        for entry in plan.entries.iter().filter(|entry| entry.kind != EntryKind::Hint) {
            let Some(sequence) = running.iter().find(|sequence| sequence.id == entry.sequence) else {
                continue;
            };
            let (map, id) = (&sequence.map, sequence.id);
            // The step's own rows are in the map already, but for those that are computed again.
            let own = if entry.kind == EntryKind::Next { entry.rows.clone() } else { 0..0 };
            let before = map.live().len() - own.len();
            let (positions, slots) = (&map.live_positions()[..before], &map.live()[..before]);
            match told.0.get(&id) {
                Some(known) if known.version == map.version() => {}
                Some(known) => plan.tables.push(known.table.patch_to(id, positions, slots)),
                None => {
                    let rows = positions.iter().copied().zip(slots.iter().copied()).collect();
                    plan.tables.push(TableChange::Set { sequence: id, rows });
                }
            }
            let known = told.0.entry(id).or_insert_with(|| Told { table: Table::default(), version: 0 });
            if known.version != map.version() {
                known.table = Table::default();
                known.table.append(positions, slots);
                known.version = map.version();
            }
            known.table.append(&plan.positions[own.clone()], &plan.slots[own]);
        }
    }
}

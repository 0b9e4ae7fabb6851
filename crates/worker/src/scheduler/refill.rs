//! Rows that come back by being computed again, beside what else runs.
//!
//! A revival that needs it holds its slots from its decision on, and its sequence waits: the rows run as prefill, in as
//! many steps as the token budget makes of them, and then the whole exchange happens at once. Promises that what is given
//! up underway leaves the session as it was before the exchange, and that a sequence which loses its rows underway gets
//! those that were to come back when it computes its rows again: the log has them from the decision on.

use hawser_common::{Position, SlotId};
use hawser_kv::retention::{Exchange, PruneRecord};

use super::plan::{EntryKind, PlanEntry, SequenceId, StepPlan};
use super::{Scheduler, Sequence};

/// A revival on its way. All of its rows are kept aside in the sequence's map.
#[derive(Clone, Debug)]
pub(super) struct Refill {
    /// To be computed, ascending; those up to `next` have been planned.
    pub(super) rows: Vec<(Position, SlotId)>,
    pub(super) next: usize,
    pub(super) exchange: Exchange,
    /// First positions of the blocks that come back.
    pub(super) blocks: Vec<Position>,
    /// Of the rows that come back, those that are computed, and those that were copied.
    pub(super) refilled: usize,
    pub(super) copied: usize,
}

impl Scheduler {
    /// Whether a sequence waits for evicted rows that are computed again.
    #[must_use]
    pub fn is_refilling(&self, id: SequenceId) -> bool {
        self.running.iter().any(|sequence| sequence.id == id && sequence.refill.is_some())
    }

    /// Adds the next rows of a refill, as many as there is room for.
    pub(super) fn plan_refill(&mut self, index: usize, room: usize, plan: &mut StepPlan) {
        let sequence = &mut self.running[index];
        let Some(refill) = &mut sequence.refill else { return };
        let count = room.min(refill.rows.len() - refill.next);
        if count == 0 {
            return;
        }
        let end = refill.next + count;
        let last = refill.rows[end - 1].0;
        let later = &refill.rows[refill.next..];
        let is_computed = |position: &Position| later.binary_search_by_key(position, |row| row.0).is_err();
        let aside = sequence.map.parked_rows().iter().take_while(|row| row.0 < last);
        let aside = aside.filter(|row| is_computed(&row.0)).copied().collect();
        let first_row = plan.rows();
        for &(position, slot) in &refill.rows[refill.next..end] {
            plan.tokens.push(sequence.tokens[position.index()]);
            plan.positions.push(position);
            plan.slots.push(slot);
        }
        refill.next = end;
        sequence.kept.refill_rows += count;
        plan.entries.push(PlanEntry {
            sequence: sequence.id,
            rows: first_row..first_row + count,
            kind: EntryKind::Refill { aside },
            sample: false,
            // What was asked when they were first computed is remembered already.
            observe: None,
            remember: None,
            prune: false,
        });
    }

    /// Carries out the exchanges whose rows have all run.
    pub(super) fn finish_refills(&mut self) {
        for index in 0..self.running.len() {
            let sequence = &mut self.running[index];
            let Some(refill) = sequence.refill.take_if(|refill| refill.next == refill.rows.len()) else {
                continue;
            };
            let Exchange { revived, evicted } = refill.exchange;
            for &first in &refill.blocks {
                sequence.archive.map(|id| self.archive.take(id, first));
            }
            sequence.kept.revived += revived.len();
            sequence.kept.refilled += refill.refilled;
            sequence.kept.copied += refill.copied;
            sequence.map.unpark(&revived);
            sequence.map.drop_parked(&mut self.pool);
            let freed = self.evict_rows(index, &evicted).unwrap_or(0);
            self.running[index].log.freed(freed);
        }
    }

    /// Forgets a refill: what was to come back stays dead, and what was to go for it stays.
    pub(super) fn give_up_refill(&mut self, sequence: &mut Sequence) {
        let Some(refill) = sequence.refill.take() else { return };
        sequence.map.drop_parked(&mut self.pool);
        let Exchange { revived, evicted } = refill.exchange;
        let at = Sequence::positions(sequence.map.len(), 0).start;
        sequence.log.push(PruneRecord { at, evicted: revived, revived: evicted, freed: 0 });
    }
}

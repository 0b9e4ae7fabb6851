//! Exact refill: dead positions whose rows are nowhere are computed again, at their positions.
//!
//! A row is what it was if it sees what it saw. Rows of exact lineage saw every position before them. So to bring one
//! back, every hole before it is computed too, from the first one on; what is live in between, and what is left of dead
//! rows elsewhere, is seen as it is. All of that is bounded: what would take more is left out.

use hawser_common::{Position, SlotId};

/// Rows that follow each other without a gap, and what all of them see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefillRun {
    /// Which of the rows.
    pub rows: std::ops::Range<usize>,
    /// Slots of all positions before the first, in position order: those that are seen, and earlier rows.
    pub context: Vec<SlotId>,
}

/// How many of `missing`, ascending, have to be computed for `position` to come back.
#[must_use]
pub fn refill_cost(missing: &[Position], position: Position) -> usize {
    missing.partition_point(|missing| *missing <= position)
}

/// Cuts rows that are computed again into runs. `seen` is live or kept aside; both ascend, and have no position in common.
#[must_use]
pub fn refill_runs(seen: &[(Position, SlotId)], rows: &[(Position, SlotId)]) -> Vec<RefillRun> {
    let mut runs = Vec::new();
    let (mut context, mut rest) = (Vec::with_capacity(seen.len() + rows.len()), seen.iter().peekable());
    let mut start = 0;
    for run in rows.chunk_by(|a, b| a.0.0 + 1 == b.0.0) {
        while let Some((_, slot)) = rest.next_if(|(position, _)| *position < run[0].0) {
            context.push(*slot);
        }
        runs.push(RefillRun { rows: start..start + run.len(), context: context.clone() });
        context.extend(run.iter().map(|row| row.1));
        start += run.len();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(pairs: &[(u32, u32)]) -> Vec<(Position, SlotId)> {
        pairs.iter().map(|&(position, slot)| (Position(position), SlotId(slot))).collect()
    }

    #[test]
    fn each_run_sees_every_position_before_it_in_order() {
        let seen = rows(&[(0, 10), (3, 13), (4, 14), (7, 17), (9, 19)]);
        let again = rows(&[(1, 21), (2, 22), (5, 25), (6, 26), (8, 28)]);
        let slots = |slots: &[u32]| slots.iter().copied().map(SlotId).collect::<Vec<_>>();
        let runs = refill_runs(&seen, &again);
        let expected = [
            (0..2, slots(&[10])),
            (2..4, slots(&[10, 21, 22, 13, 14])),
            (4..5, slots(&[10, 21, 22, 13, 14, 25, 26, 17])),
        ];
        let expected = expected.map(|(rows, context)| RefillRun { rows, context });
        assert_eq!(runs, expected);
        assert_eq!(refill_runs(&seen, &[]), []);
    }

    #[test]
    fn a_position_costs_every_hole_up_to_it() {
        let missing = [2, 3, 9].map(Position);
        let costs = [1, 2, 3, 8, 9, 20].map(|at| refill_cost(&missing, Position(at)));
        assert_eq!(costs, [0, 1, 2, 2, 3, 3]);
    }
}

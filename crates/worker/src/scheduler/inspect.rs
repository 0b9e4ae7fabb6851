//! What a session has of its history, row by row, for people who look.
//!
//! Promises to change nothing, and to say of every token what the log and the slot map say of it now. Knows no roles
//! and no text.

use hawser_common::{Position, SessionKey};
use hawser_kv::retention::{PruneLog, PruneRecord};
use hawser_kv::{SlotMap, SlotPool};

use super::Scheduler;

/// One session at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inspection {
    /// What the scheduler has of the session's tokens: the newest may be missing.
    pub tokens: Vec<u32>,
    /// What became of each token's row.
    pub rows: Vec<RowState>,
    /// In order; only of evictions that still hold.
    pub prunes: Vec<PruneRecord>,
    /// Of the last prune that scored: its candidates, ascending, and their scores relative to the mean of all.
    pub scores: Vec<(Position, f32)>,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// In the cache, held by this session alone.
    Own,
    /// In the cache, held by the prefix tree or by another session too.
    Shared,
    Evicted,
    /// Not in the cache: the next turn computes it.
    Pending,
}

impl Scheduler {
    /// What a session has, idle or in a turn; `None` for one that has nothing here.
    #[must_use]
    pub fn inspect(&self, key: &SessionKey) -> Option<Inspection> {
        let begun = self.waiting.iter().filter(|sequence| sequence.admission.is_some());
        let mut sequences = self.running.iter().chain(begun);
        let running = sequences.find(|sequence| sequence.session.as_ref() == Some(key));
        let (tokens, map, log, scores) = match running {
            Some(sequence) => (&sequence.tokens, &sequence.map, &sequence.log, &sequence.scores),
            None => {
                let idle = self.cache.find(key)?;
                (&idle.tokens, &idle.map, &idle.log, &idle.scores)
            }
        };
        Some(Inspection {
            tokens: tokens.clone(),
            rows: rows(tokens.len(), map, log, &self.pool),
            prunes: log.records().to_vec(),
            scores: scores.0.clone(),
        })
    }
}

/// The states of `len` rows. What the log names is evicted, although the map may have it again for a while: a session
/// that computes its rows again does so up to the length at which the prune happened, and then repeats the prune.
fn rows(len: usize, map: &SlotMap, log: &PruneLog, pool: &SlotPool) -> Vec<RowState> {
    let mut rows = Vec::with_capacity(len);
    for position in (0..).map(Position).take(len) {
        rows.push(match map.slot(position) {
            Some(slot) if slot.is_dead() => RowState::Evicted,
            Some(slot) if pool.refs(slot) > 1 => RowState::Shared,
            Some(_) => RowState::Own,
            None => RowState::Pending,
        });
    }
    let held = rows.clone();
    for record in log.records() {
        for position in record.evicted.iter().filter(|position| position.index() < len) {
            rows[position.index()] = RowState::Evicted;
        }
        for position in record.revived.iter().filter(|position| position.index() < len) {
            rows[position.index()] = held[position.index()];
        }
    }
    rows
}

/// Scores of a prune's candidates, ascending by position, relative to their mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Scores(Vec<(Position, f32)>);

impl Scores {
    /// Where nothing scored above nothing, all are as good as the mean.
    pub(super) fn relative(candidates: &[Position], scores: &[i64]) -> Self {
        let mean = scores.iter().map(|&score| score as f64).sum::<f64>() / scores.len().max(1) as f64;
        let relative = |&score: &i64| if mean > 0.0 { (score as f64 / mean) as f32 } else { 1.0 };
        Self(candidates.iter().copied().zip(scores.iter().map(relative)).collect())
    }

    pub(super) fn restored(scores: Vec<(Position, f32)>) -> Self {
        Self(scores)
    }

    pub(super) fn all(&self) -> &[(Position, f32)] {
        &self.0
    }

    /// Forgets the positions from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(self.0.partition_point(|(position, _)| position.index() < len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_relative_and_end_with_the_tokens() {
        let candidates = [3, 5, 8].map(Position);
        let mut scores = Scores::relative(&candidates, &[1, 2, 6]);
        assert_eq!(scores.0, [(Position(3), 1.0 / 3.0), (Position(5), 2.0 / 3.0), (Position(8), 2.0)]);
        scores.truncate(8);
        assert_eq!(scores.0.len(), 2);
        assert_eq!(Scores::relative(&candidates, &[0; 3]).0[1], (Position(5), 1.0));
        assert!(Scores::relative(&[], &[]).0.is_empty());
    }

    #[test]
    fn a_row_is_what_the_log_says_and_else_what_the_map_says() {
        use RowState::{Evicted, Own, Pending, Shared};
        let (mut pool, mut map, mut log) = (SlotPool::new(10), SlotMap::new(), PruneLog::default());
        let slots = pool.allocate(5).unwrap();
        pool.retain(slots[0]);
        map.append(&slots);
        map.evict(&[1, 3].map(Position), &mut pool).unwrap();
        log.push(PruneRecord {
            at: 5,
            evicted: [1, 3].map(Position).to_vec(),
            freed: 2,
            ..Default::default()
        });
        assert_eq!(rows(6, &map, &log, &pool), [Shared, Evicted, Own, Evicted, Own, Pending]);
        map.clear(&mut pool);
        let again = pool.allocate(5).unwrap();
        map.append(&again);
        assert_eq!(rows(6, &map, &log, &pool), [Own, Evicted, Own, Evicted, Own, Pending], "soon again");
        map.clear(&mut pool);
        assert_eq!(rows(6, &map, &log, &pool), [Pending, Evicted, Pending, Evicted, Pending, Pending]);
    }
}

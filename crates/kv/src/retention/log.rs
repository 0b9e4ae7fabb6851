//! What a session's prunes evicted and when: enough to compute the same rows again.
//!
//! A row depends on which positions were live when it was computed. So a session that lost its rows is rebuilt by
//! prefilling up to each record's length, evicting what it names, and going on: the rows are then bit-equal, whatever
//! scored them the first time.

use std::collections::BTreeSet;

use hawser_common::Position;
use serde::{Deserialize, Serialize};

/// What one event changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneRecord {
    /// N when it happened: rows from here on have seen its holes.
    pub at: u32,
    /// Ascending.
    pub evicted: Vec<Position>,
    /// Dead before, live since; ascending.
    pub revived: Vec<Position>,
    /// Slots that it returned to the pool: fewer where rows were shared, more where the prefix tree let go of others.
    pub freed: u32,
}

impl PruneRecord {
    /// This event and the next one as one. What the one evicts and the other revives is as it was.
    fn then(&mut self, next: Self) {
        let undone = |position: &mut Position, by: &[Position]| by.binary_search(position).is_ok();
        let (mut evicted, mut revived) = (next.evicted, next.revived);
        let kept: Vec<Position> = self.revived.extract_if(.., |p| undone(p, &evicted)).collect();
        let back: Vec<Position> = self.evicted.extract_if(.., |p| undone(p, &revived)).collect();
        evicted.retain(|position| kept.binary_search(position).is_err());
        revived.retain(|position| back.binary_search(position).is_err());
        self.evicted.extend(evicted);
        self.evicted.sort_unstable();
        self.revived.extend(revived);
        self.revived.sort_unstable();
        self.freed += next.freed;
    }

    fn is_nothing(&self) -> bool {
        self.evicted.is_empty() && self.revived.is_empty()
    }
}

/// A session's events in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneLog {
    records: Vec<PruneRecord>,
}

impl PruneLog {
    #[must_use]
    pub fn records(&self) -> &[PruneRecord] {
        &self.records
    }

    /// Rows below this are exact: their whole past was live when they were computed.
    #[must_use]
    pub fn exact(&self) -> usize {
        self.records.first().map_or(usize::MAX, |first| first.at as usize)
    }

    /// Writes an event down. One that changed nothing leaves no trace.
    pub fn push(&mut self, record: PruneRecord) {
        if record.is_nothing() {
            return;
        }
        match self.records.last_mut().filter(|last| last.at == record.at) {
            Some(last) => last.then(record),
            None => self.records.push(record),
        }
        // What was undone left no trace either.
        self.records.pop_if(|last| last.is_nothing());
    }

    /// The last event freed so many slots more than was known when it was written down.
    pub fn freed(&mut self, slots: usize) {
        if let Some(last) = self.records.last_mut() {
            last.freed += u32::try_from(slots).expect("slot ids are 32-bit");
        }
    }

    /// The next event that rows from `len` on must see, if one is at `len` or later.
    #[must_use]
    pub fn next_from(&self, len: usize) -> Option<&PruneRecord> {
        let index = self.records.partition_point(|record| (record.at as usize) < len);
        self.records.get(index)
    }

    /// Whether a position that the event at `at` evicts comes back later.
    #[must_use]
    pub fn comes_back(&self, at: u32, position: Position) -> bool {
        let later = self.records.iter().rev().take_while(|record| record.at > at);
        later.into_iter().any(|record| record.revived.binary_search(&position).is_ok())
    }

    /// Forgets the positions from `len` on. What later events changed before `len` stays: there is nothing to compute
    /// it from again. Of the slots they freed, no more are counted than what stays evicted.
    pub fn truncate(&mut self, len: usize) {
        let cut = self.records.partition_point(|record| record.at as usize <= len);
        let late = self.records.split_off(cut);
        let mut net =
            PruneRecord { at: u32::try_from(len).expect("positions are 32-bit"), ..Default::default() };
        late.into_iter().for_each(|record| net.then(record));
        let last = |positions: &[Position]| positions.partition_point(|position| position.index() < len);
        net.evicted.truncate(last(&net.evicted));
        net.revived.truncate(last(&net.revived));
        net.freed = net.freed.min(u32::try_from(net.evicted.len()).expect("positions are 32-bit"));
        self.push(net);
    }

    /// The positions that are dead now, if the events are in order and each evicts what was live, revives what was dead,
    /// and names only what was there, of a session of `tokens`. `None` is what only a log from outside can give.
    #[must_use]
    pub fn checked(&self, tokens: usize) -> Option<BTreeSet<Position>> {
        let mut dead = BTreeSet::new();
        let mut last = None;
        for record in &self.records {
            let ascends = last < Some(record.at) && record.at as usize <= tokens && !record.is_nothing();
            let names = |positions: &[Position]| {
                positions.is_sorted_by(|a, b| a < b) && positions.last().is_none_or(|last| last.0 < record.at)
            };
            if !(ascends && names(&record.evicted) && names(&record.revived)) {
                return None;
            }
            let revives = record.revived.iter().all(|position| dead.remove(position));
            let evicts = record.evicted.iter().all(|position| dead.insert(*position));
            if !(revives && evicts) {
                return None;
            }
            last = Some(record.at);
        }
        Some(dead)
    }

    /// Positions that are dead now.
    #[must_use]
    pub fn dead(&self) -> usize {
        self.records.iter().map(|record| record.evicted.len()).sum::<usize>()
            - self.records.iter().map(|record| record.revived.len()).sum::<usize>()
    }
}

//! What a session's prunes evicted and when: enough to compute the same rows again.
//!
//! A row depends on which positions were live when it was computed. So a session that lost its rows is rebuilt by
//! prefilling up to each record's length, evicting what it names, and going on: the rows are then bit-equal, whatever
//! scored them the first time.

use hawser_common::Position;

/// One prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneRecord {
    /// N when it happened: rows from here on have seen its holes.
    pub at: u32,
    /// Ascending.
    pub evicted: Vec<Position>,
    /// Slots that it returned to the pool: fewer where rows were shared, more where the prefix tree let go of others.
    pub freed: u32,
}

/// A session's prunes in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// Writes a prune at length `at` down, which freed so many slots. One that evicted nothing leaves no trace.
    pub fn push(&mut self, at: u32, evicted: Vec<Position>, freed: usize) {
        if evicted.is_empty() {
            return;
        }
        let freed = u32::try_from(freed).expect("slot ids are 32-bit");
        match self.records.last_mut().filter(|last| last.at == at) {
            Some(last) => {
                last.evicted.extend(evicted);
                last.evicted.sort_unstable();
                last.freed += freed;
            }
            None => self.records.push(PruneRecord { at, evicted, freed }),
        }
    }

    /// The next prune that rows from `len` on must see, if one is at `len` or later.
    #[must_use]
    pub fn next_from(&self, len: usize) -> Option<&PruneRecord> {
        let index = self.records.partition_point(|record| (record.at as usize) < len);
        self.records.get(index)
    }

    /// Forgets the positions from `len` on. What later prunes evicted before `len` stays evicted: there is nothing to
    /// compute it from again. Of the slots they freed, no more are counted than that.
    pub fn truncate(&mut self, len: usize) {
        let cut = self.records.partition_point(|record| record.at as usize <= len);
        let late = self.records.split_off(cut);
        let freed: usize = late.iter().map(|record| record.freed as usize).sum();
        let evicted: Vec<Position> = late
            .into_iter()
            .flat_map(|record| record.evicted)
            .filter(|position| position.index() < len)
            .collect();
        let mut evicted = evicted;
        evicted.sort_unstable();
        let freed = freed.min(evicted.len());
        self.push(u32::try_from(len).expect("positions are 32-bit"), evicted, freed);
    }

    /// Positions evicted in all.
    #[must_use]
    pub fn evicted(&self) -> usize {
        self.records.iter().map(|record| record.evicted.len()).sum()
    }
}

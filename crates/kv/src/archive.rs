//! The archive: copies of evicted rows in memory beside the pool, so that they can come back.
//!
//! Owns the slots behind the pool's. Rows lie in blocks of neighbouring positions; each block has a digest, a row whose
//! keys are the mean of the block's, by which the whole block is scored for the price of one row. Promises that it never
//! holds more slots than it was given: the block stored longest ago goes first. Never touches rows: what is to be copied
//! is said in [`RowMove`]s, to be carried out in order before any row of the pool is written again.

use std::collections::{BTreeMap, HashMap};

use hawser_common::{Position, SlotId};
use serde::{Deserialize, Serialize};

/// Positions of a block, aligned to multiples of it.
pub const BLOCK_POSITIONS: u32 = 16;

/// A session in the archive, unique within its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchiveId(pub u64);

/// What ranks do to rows between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowMove {
    /// The row of `to` becomes that of `from`.
    Copy { from: SlotId, to: SlotId },
    /// The key of `to` becomes the mean of the keys of `of`.
    Digest { of: Vec<SlotId>, to: SlotId },
}

/// Evicted rows of neighbouring positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Ascending.
    pub rows: Vec<(Position, SlotId)>,
    /// Where the mean of their keys lies.
    pub digest: SlotId,
    stamp: u64,
}

/// Blocks of all sessions.
#[derive(Debug, Default)]
pub struct Archive {
    free: Vec<SlotId>,
    slots: usize,
    sessions: HashMap<ArchiveId, BTreeMap<u32, Block>>,
    /// Which block was stored when.
    oldest: BTreeMap<u64, (ArchiveId, u32)>,
    next_stamp: u64,
    next_id: u64,
}

impl Archive {
    /// An archive of `slots` slots, the first of which is `first`.
    ///
    /// # Panics
    /// If there are more than 2^32 slots in all: configuration is validated before.
    #[must_use]
    pub fn new(first: usize, slots: usize) -> Self {
        let id = |slot: usize| SlotId(u32::try_from(slot).expect("slot ids are 32-bit"));
        Self { free: (first..first + slots).rev().map(id).collect(), slots, ..Self::default() }
    }

    /// All slots, used or not.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Slots in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.slots - self.free.len()
    }

    /// A new session's name.
    pub fn open(&mut self) -> ArchiveId {
        self.next_id += 1;
        ArchiveId(self.next_id)
    }

    /// Takes copies of rows that a session evicts, ascending. Others make room, oldest first; where even that is not
    /// enough, the rows that come last are not kept.
    pub fn store(&mut self, id: ArchiveId, rows: &[(Position, SlotId)], moves: &mut Vec<RowMove>) {
        for rows in rows.chunk_by(|a, b| block_of(a.0) == block_of(b.0)) {
            let number = block_of(rows[0].0);
            // The block is the newest now; what it held is stored again with it.
            let held = self.remove(id, number).map(|block| (block.digest, block.rows));
            let needed = rows.len() + usize::from(held.is_none());
            while self.free.len() < needed && self.drop_oldest() {}
            let (digest, mut kept) = match held {
                Some(held) => held,
                None if self.free.len() > 1 => {
                    (self.free.pop().expect("a slot is free"), Vec::with_capacity(rows.len()))
                }
                None => continue,
            };
            for &(position, from) in rows {
                let Some(to) = self.free.pop() else { break };
                moves.push(RowMove::Copy { from, to });
                kept.push((position, to));
            }
            kept.sort_unstable();
            self.insert(id, number, digest, kept, moves);
        }
    }

    fn insert(
        &mut self,
        id: ArchiveId,
        number: u32,
        digest: SlotId,
        rows: Vec<(Position, SlotId)>,
        moves: &mut Vec<RowMove>,
    ) {
        moves.push(RowMove::Digest { of: rows.iter().map(|&(_, slot)| slot).collect(), to: digest });
        self.next_stamp += 1;
        self.oldest.insert(self.next_stamp, (id, number));
        let block = Block { rows, digest, stamp: self.next_stamp };
        self.sessions.entry(id).or_default().insert(number, block);
    }

    /// A session's blocks by position.
    pub fn blocks(&self, id: ArchiveId) -> impl Iterator<Item = &Block> {
        self.sessions.get(&id).into_iter().flat_map(BTreeMap::values)
    }

    /// Takes the block of a position out. Its slots are free, and keep their rows until the next store.
    pub fn take(&mut self, id: ArchiveId, position: Position) -> Option<Block> {
        let block = self.remove(id, block_of(position))?;
        self.give_back(&block);
        Some(block)
    }

    /// Forgets a session's positions from `len` on.
    pub fn truncate(&mut self, id: ArchiveId, len: usize, moves: &mut Vec<RowMove>) {
        let Some(blocks) = self.sessions.get(&id) else { return };
        let late = |block: &Block| block.rows.last().is_some_and(|(position, _)| position.index() >= len);
        let cut: Vec<u32> =
            blocks.iter().rev().take_while(|(_, block)| late(block)).map(|(&number, _)| number).collect();
        for number in cut {
            let Some(mut block) = self.remove(id, number) else { continue };
            let left = block.rows.partition_point(|(position, _)| position.index() < len);
            let gone = block.rows.split_off(left);
            if block.rows.is_empty() {
                self.free.push(block.digest);
            } else {
                self.insert(id, number, block.digest, block.rows, moves);
            }
            self.free.extend(gone.into_iter().map(|(_, slot)| slot));
        }
    }

    /// Forgets a session.
    pub fn forget(&mut self, id: ArchiveId) {
        for block in self.sessions.remove(&id).into_iter().flat_map(BTreeMap::into_values) {
            self.oldest.remove(&block.stamp);
            self.give_back(&block);
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((_, (id, number))) = self.oldest.first_key_value().map(|(&stamp, &block)| (stamp, block))
        else {
            return false;
        };
        self.remove(id, number).is_some_and(|block| {
            self.give_back(&block);
            true
        })
    }

    fn remove(&mut self, id: ArchiveId, number: u32) -> Option<Block> {
        let blocks = self.sessions.get_mut(&id)?;
        let block = blocks.remove(&number)?;
        if blocks.is_empty() {
            self.sessions.remove(&id);
        }
        self.oldest.remove(&block.stamp);
        Some(block)
    }

    fn give_back(&mut self, block: &Block) {
        self.free.push(block.digest);
        self.free.extend(block.rows.iter().map(|&(_, slot)| slot));
    }

    /// Every slot in use or free exactly once: for tests and audits.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let blocks = || self.sessions.values().flat_map(BTreeMap::values);
        let held = blocks().flat_map(|block| block.rows.iter().map(|&(_, slot)| slot).chain([block.digest]));
        let mut all: Vec<SlotId> = held.chain(self.free.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        let ordered = blocks().all(|block| !block.rows.is_empty() && block.rows.is_sorted());
        all.len() == self.slots && blocks().count() == self.oldest.len() && ordered
    }
}

fn block_of(position: Position) -> u32 {
    position.0 / BLOCK_POSITIONS
}

#[cfg(test)]
mod tests;

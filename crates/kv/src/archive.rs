//! The archive: copies of evicted rows in memory beside the pool, so that they can come back.
//!
//! Owns the slots behind the pool's. Rows lie in blocks of neighbouring positions; each block has a digest, a row whose
//! keys are the mean of the block's, by which the whole block is scored for the price of one row. Rows that can be
//! computed again go before the digest that finds them: their block is then *hollow*. Promises that it never holds more
//! slots than it was given: the block stored longest ago goes first. Never touches rows: what is to be copied is said in
//! [`RowMove`]s, to be carried out in order before any row of the pool is written again.

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
    /// The key of `to` becomes the mean of the keys of `of`, of which `to` itself and repeated ones may be part.
    Digest { of: Vec<SlotId>, to: SlotId },
}

/// Evicted rows of neighbouring positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Ascending.
    pub rows: Vec<(Position, SlotId)>,
    /// Positions whose rows were given up, and can be computed again; ascending.
    pub hollow: Vec<Position>,
    /// Where the mean of the keys of both lies.
    pub digest: SlotId,
    /// Positions below it can be computed again.
    exact: usize,
    stamp: u64,
}

/// Blocks of all sessions.
#[derive(Debug, Default)]
pub struct Archive {
    free: Vec<SlotId>,
    slots: usize,
    sessions: HashMap<ArchiveId, BTreeMap<u32, Block>>,
    /// Which block was stored when, of those with rows.
    oldest: BTreeMap<u64, (ArchiveId, u32)>,
    /// The same of those without.
    hollow: BTreeMap<u64, (ArchiveId, u32)>,
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
    /// enough, the rows that come last are not kept. Of positions below `exact`, whose rows can be computed again, the
    /// digest stays longer than the row.
    pub fn store(
        &mut self,
        id: ArchiveId,
        rows: &[(Position, SlotId)],
        exact: usize,
        moves: &mut Vec<RowMove>,
    ) {
        for rows in rows.chunk_by(|a, b| block_of(a.0) == block_of(b.0)) {
            let number = block_of(rows[0].0);
            // The block is the newest now; what it held is stored again with it.
            let held = self.remove(id, number);
            let needed = rows.len() + usize::from(held.is_none());
            while self.free.len() < needed && self.make_room() {}
            let can_be_hollow = rows[0].0.index() < exact;
            let mut block = match held {
                Some(block) => block,
                None if self.free.len() > usize::from(!can_be_hollow) => {
                    let digest = self.free.pop().expect("a slot is free");
                    Block {
                        rows: Vec::with_capacity(rows.len()),
                        hollow: Vec::new(),
                        digest,
                        exact,
                        stamp: 0,
                    }
                }
                None => continue,
            };
            block.exact = exact;
            let mut of = block.keys();
            for &(position, from) in rows {
                if let Some(to) = self.free.pop() {
                    moves.push(RowMove::Copy { from, to });
                    block.rows.push((position, to));
                    of.push(to);
                } else if position.index() < exact {
                    block.hollow.push(position);
                    of.push(from);
                }
            }
            block.rows.sort_unstable();
            block.hollow.sort_unstable();
            moves.push(RowMove::Digest { of, to: block.digest });
            self.insert(id, number, block);
        }
    }

    fn insert(&mut self, id: ArchiveId, number: u32, mut block: Block) {
        self.next_stamp += 1;
        block.stamp = self.next_stamp;
        let list = if block.rows.is_empty() { &mut self.hollow } else { &mut self.oldest };
        list.insert(block.stamp, (id, number));
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
        let late = |block: &Block| block.last().is_some_and(|position| position.index() >= len);
        let cut: Vec<u32> =
            blocks.iter().rev().take_while(|(_, block)| late(block)).map(|(&number, _)| number).collect();
        for number in cut {
            let Some(mut block) = self.remove(id, number) else { continue };
            let left = block.rows.partition_point(|(position, _)| position.index() < len);
            let gone = block.rows.split_off(left);
            block.hollow.retain(|position| position.index() < len);
            self.free.extend(gone.into_iter().map(|(_, slot)| slot));
            if block.rows.is_empty() && block.hollow.is_empty() {
                self.free.push(block.digest);
            } else {
                moves.push(RowMove::Digest { of: block.keys(), to: block.digest });
                self.insert(id, number, block);
            }
        }
    }

    /// Forgets a session.
    pub fn forget(&mut self, id: ArchiveId) {
        for block in self.sessions.remove(&id).into_iter().flat_map(BTreeMap::into_values) {
            self.unlist(&block);
            self.give_back(&block);
        }
    }

    /// Gives up the rows stored longest ago, or a digest where half of the archive is digests without rows.
    fn make_room(&mut self) -> bool {
        let digests = self.hollow.first_key_value().map(|(_, &block)| block);
        let rows = self.oldest.first_key_value().map(|(_, &block)| block);
        let most = self.slots / 2;
        let (id, number) = match (rows, digests) {
            (_, Some(digest)) if self.hollow.len() > most => digest,
            (Some(rows), _) => rows,
            (None, Some(digest)) => digest,
            (None, None) => return false,
        };
        let Some(mut block) = self.remove(id, number) else { return false };
        if block.rows.is_empty() {
            self.give_back(&block);
            return true;
        }
        let again = block.rows.iter().map(|row| row.0).filter(|position| position.index() < block.exact);
        block.hollow.extend(again);
        block.hollow.sort_unstable();
        self.free.extend(block.rows.drain(..).map(|(_, slot)| slot));
        if block.hollow.is_empty() {
            self.free.push(block.digest);
        } else {
            self.insert(id, number, block);
        }
        true
    }

    fn remove(&mut self, id: ArchiveId, number: u32) -> Option<Block> {
        let blocks = self.sessions.get_mut(&id)?;
        let block = blocks.remove(&number)?;
        if blocks.is_empty() {
            self.sessions.remove(&id);
        }
        self.unlist(&block);
        Some(block)
    }

    fn unlist(&mut self, block: &Block) {
        self.oldest.remove(&block.stamp);
        self.hollow.remove(&block.stamp);
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
        let ordered = blocks().all(|block| {
            block.last().is_some() && block.rows.is_sorted() && block.hollow.is_sorted_by(|a, b| a < b)
        });
        let listed = self.oldest.len() + self.hollow.len();
        all.len() == self.slots && blocks().count() == listed && ordered
    }
}

impl Block {
    /// Its positions that have a row here or can be computed again, without order.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        self.rows.iter().map(|row| row.0).chain(self.hollow.iter().copied())
    }

    fn last(&self) -> Option<Position> {
        self.rows.last().map(|row| row.0).max(self.hollow.last().copied())
    }

    /// What the digest is the mean of: the rows, and the digest itself in place of each row that is not there.
    fn keys(&self) -> Vec<SlotId> {
        let hollow = std::iter::repeat_n(self.digest, self.hollow.len());
        hollow.chain(self.rows.iter().map(|row| row.1)).collect()
    }
}

fn block_of(position: Position) -> u32 {
    position.0 / BLOCK_POSITIONS
}

#[cfg(test)]
mod tests;

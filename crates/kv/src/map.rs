//! A session's slot map: which slot each position has, and the dense list of the live ones.
//!
//! Pruning marks positions dead and never moves the others: a survivor keeps its position and its slot.

use hawser_common::{Position, SlotId};
use thiserror::Error;

use crate::pool::SlotPool;

/// Why an eviction was refused. Nothing was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EvictError {
    #[error("position {} is past the end of the session ({len})", position.0)]
    PastEnd { position: Position, len: u32 },
    #[error("position {} is the newest token, which is always live", position.0)]
    Newest { position: Position },
    #[error("position {} lies in the protected prefix of {protected} tokens", position.0)]
    Protected { position: Position, protected: u32 },
    #[error("position {} is named twice, out of order, or evicted already", position.0)]
    NotLive { position: Position },
}

/// Position → slot of one session. Owns one holding of each of its slots; give them back with [`SlotMap::clear`].
#[derive(Debug, Default)]
pub struct SlotMap {
    slots: Vec<SlotId>,
    live: Vec<SlotId>,
    live_positions: Vec<Position>,
    /// Dead positions whose rows are kept aside, ascending: they come back when the session has been computed so far.
    parked: Vec<(Position, SlotId)>,
    protected: u32,
    version: u64,
}

impl SlotMap {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A map of `len` positions, of which those that are live, ascending, have these slots, whose holding passes to it.
    /// `None` where they do not ascend, reach past the end, or name the dead slot; nothing has passed then.
    #[must_use]
    pub fn restored(len: usize, live: &[(Position, SlotId)]) -> Option<Self> {
        let ascends = live.is_sorted_by(|a, b| a.0 < b.0);
        let fits = live.last().is_none_or(|(last, _)| last.index() < len) && u32::try_from(len).is_ok();
        if !ascends || !fits || live.iter().any(|(_, slot)| slot.is_dead()) {
            return None;
        }
        let mut map = Self { slots: vec![SlotId::DEAD; len], ..Self::default() };
        for &(position, slot) in live {
            map.slots[position.index()] = slot;
        }
        (map.live_positions, map.live) = live.iter().copied().unzip();
        Some(map)
    }

    /// Logical length: the position of the next token.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Slots of the live positions, in position order: what attention reads.
    #[must_use]
    pub fn live(&self) -> &[SlotId] {
        &self.live
    }

    /// The live positions, ascending.
    #[must_use]
    pub fn live_positions(&self) -> &[Position] {
        &self.live_positions
    }

    /// Slots of dead positions that [`SlotMap::park`] keeps aside.
    pub fn parked(&self) -> impl Iterator<Item = SlotId> {
        self.parked.iter().map(|&(_, slot)| slot)
    }

    /// Positions that have no slot: what pruning has saved.
    #[must_use]
    pub fn vacant(&self) -> usize {
        self.len() - self.live.len() - self.parked.len()
    }

    /// Whether every position is live.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.live.len() == self.len()
    }

    /// Grows with every change of the live positions but for those that [`SlotMap::append`] adds. Never 0.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version + 1
    }

    /// Slot of a position; the dead slot if it was evicted, `None` past the end.
    #[must_use]
    pub fn slot(&self, position: Position) -> Option<SlotId> {
        self.slots.get(position.index()).copied()
    }

    /// The first `tokens` positions cannot be evicted from now on.
    pub fn protect(&mut self, tokens: u32) {
        self.protected = tokens;
    }

    /// Gives the next positions these slots, whose holding passes to the map.
    pub fn append(&mut self, slots: &[SlotId]) {
        for &slot in slots {
            assert!(!slot.is_dead(), "a new row never gets the dead slot");
            let position = u32::try_from(self.slots.len()).expect("positions are 32-bit");
            self.slots.push(slot);
            self.live.push(slot);
            self.live_positions.push(Position(position));
        }
    }

    /// Forgets every position from `len` on. Returns how many slots became free.
    pub fn truncate(&mut self, len: usize, pool: &mut SlotPool) -> usize {
        let dropped = self.slots.drain(len.min(self.slots.len())..);
        let freed = dropped.filter(|slot| !slot.is_dead()).filter(|&slot| pool.release(slot)).count();
        let parked = self.parked.partition_point(|(position, _)| position.index() < len);
        let freed = freed + self.parked.drain(parked..).filter(|&(_, slot)| pool.release(slot)).count();
        let live = self.live_positions.partition_point(|position| position.index() < len);
        self.version += u64::from(live < self.live.len());
        self.live.truncate(live);
        self.live_positions.truncate(live);
        freed
    }

    /// Marks positions dead, ascending. Returns how many slots became free: a shared slot's memory returns only
    /// when its last holder lets go.
    ///
    /// # Errors
    /// [`EvictError`] for the first position that may not be evicted; the map is then unchanged.
    pub fn evict(&mut self, positions: &[Position], pool: &mut SlotPool) -> Result<usize, EvictError> {
        self.may_evict(positions)?;
        let mut freed = 0;
        for &position in positions {
            let slot = std::mem::replace(&mut self.slots[position.index()], SlotId::DEAD);
            freed += usize::from(pool.release(slot));
        }
        self.live_positions.retain(|position| !self.slots[position.index()].is_dead());
        self.list_live();
        Ok(freed)
    }

    /// As [`SlotMap::evict`], but the rows stay held, for [`SlotMap::unpark`].
    ///
    /// # Errors
    /// As [`SlotMap::evict`].
    pub fn park(&mut self, positions: &[Position]) -> Result<(), EvictError> {
        self.may_evict(positions)?;
        for &position in positions {
            let slot = std::mem::replace(&mut self.slots[position.index()], SlotId::DEAD);
            self.parked.push((position, slot));
        }
        self.parked.sort_unstable();
        self.live_positions.retain(|position| !self.slots[position.index()].is_dead());
        self.list_live();
        Ok(())
    }

    /// Keeps rows of dead positions aside, ascending, which [`SlotMap::unpark`] may make live. Their holding passes to
    /// the map.
    pub fn put_aside(&mut self, rows: &[(Position, SlotId)]) {
        for &(position, slot) in rows {
            let dead = self.slots.get(position.index()).is_some_and(|slot| slot.is_dead());
            assert!(!slot.is_dead() && dead, "only a dead position's row is put aside");
            self.parked.push((position, slot));
        }
        self.parked.sort_unstable();
    }

    /// Gives back what is kept aside. Returns how many slots became free.
    pub fn drop_parked(&mut self, pool: &mut SlotPool) -> usize {
        self.parked.drain(..).filter(|&(_, slot)| pool.release(slot)).count()
    }

    /// The rows that are kept aside, ascending.
    #[must_use]
    pub fn parked_rows(&self) -> &[(Position, SlotId)] {
        &self.parked
    }

    /// Makes those of the positions live again that are parked.
    pub fn unpark(&mut self, positions: &[Position]) {
        let wanted = |&mut (position, _): &mut (Position, SlotId)| positions.binary_search(&position).is_ok();
        let rows: Vec<(Position, SlotId)> = self.parked.extract_if(.., wanted).collect();
        self.revive(&rows);
    }

    /// Makes dead positions, ascending, live again. The holding of their slots passes to the map.
    pub fn revive(&mut self, rows: &[(Position, SlotId)]) {
        if rows.is_empty() {
            return;
        }
        for &(position, slot) in rows {
            assert!(
                !slot.is_dead() && self.slots[position.index()].is_dead(),
                "only a dead position revives"
            );
            self.slots[position.index()] = slot;
            self.live_positions.push(position);
        }
        self.live_positions.sort_unstable();
        self.list_live();
    }

    fn list_live(&mut self) {
        self.version += 1;
        self.live.clear();
        self.live.extend(self.live_positions.iter().map(|position| self.slots[position.index()]));
    }

    fn may_evict(&self, positions: &[Position]) -> Result<(), EvictError> {
        let len = u32::try_from(self.slots.len()).expect("positions are 32-bit");
        let mut before = None;
        for &position in positions {
            if position.0 >= len {
                return Err(EvictError::PastEnd { position, len });
            }
            if position.0 + 1 == len {
                return Err(EvictError::Newest { position });
            }
            if position.0 < self.protected {
                return Err(EvictError::Protected { position, protected: self.protected });
            }
            if before >= Some(position) || self.slots[position.index()].is_dead() {
                return Err(EvictError::NotLive { position });
            }
            before = Some(position);
        }
        Ok(())
    }

    /// A second map over the same rows; both hold every live slot.
    pub fn share(&self, pool: &mut SlotPool) -> Self {
        self.live.iter().copied().chain(self.parked()).for_each(|slot| pool.retain(slot));
        Self {
            slots: self.slots.clone(),
            live: self.live.clone(),
            live_positions: self.live_positions.clone(),
            parked: self.parked.clone(),
            protected: self.protected,
            version: self.version,
        }
    }

    /// Gives every slot back; calling it again does nothing. Returns how many slots became free.
    pub fn clear(&mut self, pool: &mut SlotPool) -> usize {
        self.protected = 0;
        self.truncate(0, pool)
    }
}

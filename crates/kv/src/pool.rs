//! The slot pool: a free list and one reference count per slot.
//!
//! A slot is free, or held by as many holders as its count says. Slot 0 is the dead slot: neither free nor held.

use hawser_common::SlotId;
use thiserror::Error;

/// Too few free slots; nothing was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the pool has {free} free slots; {wanted} are needed")]
pub struct PoolExhausted {
    pub wanted: usize,
    pub free: usize,
}

/// Slots of one worker group. Every slot has room for one token's KV rows in all layers.
#[derive(Debug, Clone)]
pub struct SlotPool {
    /// Last freed is first reused: its rows are the likeliest to be in a cache.
    free: Vec<SlotId>,
    /// Holders of each slot, by slot index; the dead slot's is never used.
    refs: Vec<u32>,
    /// Slots that came down to one holder since they were last asked for, each once.
    sole: Vec<SlotId>,
    /// Which slots `sole` has, by slot index.
    is_sole: Vec<bool>,
}

impl SlotPool {
    /// A pool of `total` slots, the dead slot included.
    ///
    /// # Panics
    /// If `total` is 0 or above `u32::MAX`: both are set by configuration, which is validated before.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let last = u32::try_from(total).expect("slot ids are 32-bit");
        assert!(last >= 1, "a pool has at least the dead slot");
        Self {
            free: (1..last).rev().map(SlotId).collect(),
            refs: vec![0; total],
            sole: Vec::new(),
            is_sole: vec![false; total],
        }
    }

    /// All slots, the dead slot included.
    #[must_use]
    pub fn total(&self) -> usize {
        self.refs.len()
    }

    /// Slots that a session can have: all but the dead slot.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.refs.len() - 1
    }

    /// Slots on the free list.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Holders of `slot`; 0 for a free slot and for the dead slot.
    #[must_use]
    pub fn refs(&self, slot: SlotId) -> u32 {
        self.refs[slot.index()]
    }

    /// Takes `count` slots, each with one holder.
    ///
    /// # Errors
    /// [`PoolExhausted`] if there are fewer; the pool is then unchanged.
    pub fn allocate(&mut self, count: usize) -> Result<Vec<SlotId>, PoolExhausted> {
        let left = self
            .free
            .len()
            .checked_sub(count)
            .ok_or(PoolExhausted { wanted: count, free: self.free.len() })?;
        let mut slots = self.free.split_off(left);
        slots.reverse();
        for slot in &slots {
            let refs = &mut self.refs[slot.index()];
            assert_eq!(*refs, 0, "a slot on the free list has no holder");
            *refs = 1;
        }
        Ok(slots)
    }

    /// Adds a holder to a slot that has one.
    ///
    /// # Panics
    /// If the slot is free or dead: sharing a row that nobody holds is a bug.
    pub fn retain(&mut self, slot: SlotId) {
        let refs = &mut self.refs[slot.index()];
        assert!(!slot.is_dead() && *refs > 0, "only a held slot is shared");
        *refs += 1;
    }

    /// Removes one holder; the last one frees the slot. Returns whether it became free.
    ///
    /// # Panics
    /// If the slot is free or dead: a second free of one holding is a bug.
    pub fn release(&mut self, slot: SlotId) -> bool {
        let refs = &mut self.refs[slot.index()];
        assert!(!slot.is_dead() && *refs > 0, "only a held slot is released");
        *refs -= 1;
        let left = *refs;
        if left == 0 {
            self.free.push(slot);
        } else if left == 1 && !std::mem::replace(&mut self.is_sole[slot.index()], true) {
            self.sole.push(slot);
        }
        left == 0
    }

    /// Takes the slots that came down to one holder since the last call. They may have others by now, or none: it
    /// says where to look, so that who waits for holders to go need not look at every slot.
    pub(crate) fn take_sole(&mut self) -> Vec<SlotId> {
        self.sole.iter().for_each(|slot| self.is_sole[slot.index()] = false);
        std::mem::take(&mut self.sole)
    }

    /// Whether the next [`SlotPool::take_sole`] has `slot`.
    pub(crate) fn is_sole(&self, slot: SlotId) -> bool {
        self.is_sole[slot.index()]
    }

    pub(crate) fn free_list(&self) -> &[SlotId] {
        &self.free
    }
}

//! Worker groups as the placement store knows them.

use crate::ids::{Epoch, GroupId};

/// Who owns a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub group: GroupId,
    pub epoch: Epoch,
}

/// What a group has left. Counts of slots; one slot holds one token's KV rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Usable slots of the pool (the dead slot is not one).
    pub slots_total: u64,
    pub slots_free: u64,
    /// Held by nothing that runs, and may be taken: by idle sessions, or by the prefix tree alone.
    pub slots_idle: u64,
    /// What sessions would hold more if nothing of them had been pruned.
    pub slots_reclaimed: u64,
    /// What the prompts of running and waiting requests have yet to take, as far as their retention keeps them.
    pub slots_reserved: u64,
    /// That it holds by a claim.
    pub sessions: u64,
    pub running: u32,
    pub queued: u32,
}

impl Capacity {
    /// Held by requests that run or wait, and by sessions that move: not to be had.
    #[must_use]
    pub fn slots_live(&self) -> u64 {
        self.slots_total.saturating_sub(self.slots_free).saturating_sub(self.slots_idle)
    }
}

/// A group's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    pub id: GroupId,
    pub model: String,
    /// URI of the leader.
    pub address: String,
    pub tp: u32,
    /// Given by the store at registration.
    pub epoch: Epoch,
    pub capacity: Capacity,
    /// Takes no new sessions.
    pub draining: bool,
}

impl GroupRecord {
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { group: self.id.clone(), epoch: self.epoch }
    }
}

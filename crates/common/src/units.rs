//! Positions and slots: different types, so that one is never used for the other.

use serde::{Deserialize, Serialize};

/// Index of a token in a session, from 0. Fixes the RoPE phase; pruning never changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Position(pub u32);

/// Index of one token's KV rows in a group's pool. Pruning and demotion change which slot a position has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct SlotId(pub u32);

impl SlotId {
    /// Stands for an evicted position. Never allocated, never written, and never read by a kernel.
    pub const DEAD: Self = Self(0);

    /// Whether this is the dead slot.
    #[must_use]
    pub const fn is_dead(self) -> bool {
        self.0 == 0
    }

    /// As an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Position {
    /// As an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

//! Memory that scoring needs during a call, kept between calls so that a decision allocates nothing.

use hawser_common::SlotId;

use super::heads::{Heads, Window, windows};
use super::mass::Mass;
use super::shares::{Room, RoomSize};
use super::{MassCall, ScoreCall};
use crate::attention::{Floats, Offsets};
use crate::kv::KvRows;
use crate::simd::MAX_LANES;

/// Grows to what the largest call needs. One per caller.
#[derive(Debug, Default)]
pub struct ScoreScratch {
    /// Where the keys' rows are in a layer, for KV head 0.
    pub(super) keys: Offsets,
    pub(super) size: RoomSize,
    pub(super) windows: Vec<Window>,
    /// Keys that each row of a [`MassCall`] sees.
    pub(super) visible: Vec<usize>,
    pub(super) workspaces: Vec<Workspace>,
}

/// One thread's memory.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    pub(super) room: Room,
    /// Shares of a unit's query heads: `[G][padded keys]`.
    pub(super) shares: Floats,
    pub(super) heads: Heads,
    pub(super) mass: Mass,
}

impl ScoreScratch {
    pub(super) fn prepare(&mut self, call: &ScoreCall<'_>, threads: usize) {
        gather(call.kv, call.keys.iter(), &mut self.keys);
        windows(call.pool, &mut self.windows);
        let shape = call.kv.shape();
        let group = call.heads.largest_group();
        let size = RoomSize {
            rows: call.visible.len(),
            group,
            keys: call.visible.iter().copied().max().unwrap_or(0),
            dim: shape.padded_dim(),
        };
        self.grow(size, threads);
        let padded = padded(call.keys.len());
        for workspace in &mut self.workspaces[..threads] {
            workspace.shares.grow(group * padded);
            workspace.heads.reset(call.candidates.len());
        }
    }

    /// For units of at most `rows` rows.
    pub(super) fn prepare_mass(&mut self, call: &MassCall<'_>, rows: usize, threads: usize) {
        gather(call.kv, call.context.iter().chain(call.own), &mut self.keys);
        self.visible.clear();
        self.visible.extend((1..=call.own.len()).map(|own| call.context.len() + own));
        let shape = call.kv.shape();
        let keys = self.keys.keys();
        let size = RoomSize { rows, group: call.heads.largest_group(), keys, dim: shape.padded_dim() };
        self.grow(size, threads);
        for workspace in &mut self.workspaces[..threads] {
            workspace.mass.reset(keys);
        }
    }

    fn grow(&mut self, size: RoomSize, threads: usize) {
        self.size = size;
        if self.workspaces.len() < threads {
            self.workspaces.resize_with(threads, Workspace::default);
        }
        for workspace in &mut self.workspaces[..threads] {
            workspace.room.grow(size);
        }
    }
}

/// Numbers of one head's shares: one per key, and the rest of the last vector.
pub(super) const fn padded(keys: usize) -> usize {
    keys.next_multiple_of(MAX_LANES)
}

/// Finds the rows of keys. Every slot is checked here, once per call, so that the kernels need not.
fn gather<'a>(kv: &KvRows, keys: impl Iterator<Item = &'a SlotId>, to: &mut Offsets) {
    let shape = kv.shape();
    to.clear();
    for slot in keys {
        assert!(!slot.is_dead() && slot.index() < shape.slots, "slot {} in a live list", slot.0);
        to.push(slot.index() * shape.slot_stride());
    }
    to.pad();
}

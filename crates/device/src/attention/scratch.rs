//! Memory that attention needs during a call, kept between calls so that a step allocates nothing.

use super::plan::Plan;
use super::{AttendCall, BLOCK};
use crate::simd::MAX_LANES;

/// Grows to what the largest call needs. One per caller.
#[derive(Debug, Default)]
pub struct AttendScratch {
    pub(super) plan: Plan,
    pub(super) workspaces: Vec<Workspace>,
    pub(super) partials: Floats,
}

impl AttendScratch {
    pub(super) fn prepare(&mut self, call: &AttendCall<'_>, threads: usize) {
        self.plan.make(call, threads);
        let dim = call.kv.shape().padded_dim();
        let state = state_len(dim);
        self.partials.grow(self.plan.partials() * state);
        if self.workspaces.len() < threads {
            self.workspaces.resize_with(threads, Workspace::default);
        }
        let queries = self.plan.most_queries();
        for workspace in &mut self.workspaces {
            workspace.queries.grow(queries * dim);
            workspace.scores.grow(queries * BLOCK);
            workspace.block.grow(queries * state);
            workspace.running.grow(queries * state);
            workspace.packed.grow(SUB_BLOCK * dim);
        }
    }
}

/// Keys of a block that stay in the first-level cache while all query rows of a tile pass over them. A multiple of 4
/// that divides [`BLOCK`]; it has no effect on results.
pub(crate) const SUB_BLOCK: usize = 64;

/// Numbers of a softmax state of one query: the weighted sum of values `[D']`, then the maximum and the sum of
/// weights, which are at [`maximum_at`] and [`weight_at`].
pub(super) const fn state_len(dim: usize) -> usize {
    dim + MAX_LANES
}

/// Index of the largest score in a state.
pub(super) const fn maximum_at(dim: usize) -> usize {
    dim
}

/// Index of the sum of weights in a state. 0: no key was seen.
pub(super) const fn weight_at(dim: usize) -> usize {
    dim + 1
}

/// One thread's memory.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Scaled queries of a unit: `[rows][G][D']`.
    pub(super) queries: Floats,
    /// Scores, then weights, of a block: `[rows][G][BLOCK]`.
    pub(super) scores: Floats,
    /// States of a block and of all blocks so far: `[rows][G][state_len]`.
    pub(super) block: Floats,
    pub(super) running: Floats,
    /// Rows of a sub-block as f32: `[SUB_BLOCK][D']`.
    pub(super) packed: Floats,
    /// Where the rows of this block and of the next one are.
    pub(super) now: Offsets,
    pub(super) next: Offsets,
}

/// Offsets of a block's rows in a layer, in items; padded to a multiple of 4 by repeating the last.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    at: Vec<usize>,
    keys: usize,
}

impl Offsets {
    pub(crate) fn clear(&mut self) {
        self.at.clear();
        self.keys = 0;
    }

    pub(crate) fn push(&mut self, offset: usize) {
        self.at.push(offset);
        self.keys += 1;
    }

    pub(crate) fn pad(&mut self) {
        if let Some(&last) = self.at.last() {
            self.at.resize(self.keys.next_multiple_of(4), last);
        }
    }

    /// Keys, without padding.
    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    pub(crate) fn padded(&self) -> &[usize] {
        &self.at
    }
}

/// f32 numbers aligned to cache lines.
#[derive(Debug, Default)]
pub(crate) struct Floats(Vec<Line>);

#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Floats {
    pub(crate) fn grow(&mut self, len: usize) {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line::default());
        }
    }

    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

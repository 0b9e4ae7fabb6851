//! Shares of attention: the softmax of query rows of one KV head over one list of keys, added up key by key.
//!
//! Keys are read in blocks, once for all queries of a tile: the weights of a block, relative to its largest, stay in
//! memory until all blocks are there and each block's part of the whole is known.

use std::ops::Range;

use super::parts::score_all;
use crate::attention::{
    Ahead, BLOCK, Floats, LEAST_PACKED_QUERIES, Pack, PackedOffsets, Rows, SUB_BLOCK, Softmax, packed_offsets,
};
use crate::kv::{F32, RowFormat};
use crate::simd::{Kernel, Simd, exp2};

/// Weights that a tile of rows keeps at most: more would leave the caches before they are added up.
const MOST_WEIGHTS: usize = 1 << 18;
/// Query vectors of a tile at most: more would not fit the first-level cache beside a sub-block of keys.
const MOST_QUERIES: usize = 96;

/// Query rows of one KV head.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// From the group's first head of the first row on.
    pub(super) q: &'a [f32],
    /// Numbers from one row to the next.
    pub(super) stride: usize,
    /// G.
    pub(super) group: usize,
    /// D.
    pub(super) head_dim: usize,
    /// How many keys each row sees.
    pub(super) visible: &'a [usize],
    /// What the shares of a row add up to.
    pub(super) whole: f64,
}

/// What the largest unit of a call needs room for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomSize {
    pub(super) rows: usize,
    /// The most query heads of one KV head.
    pub(super) group: usize,
    pub(super) keys: usize,
    /// D'.
    pub(super) dim: usize,
}

impl RoomSize {
    fn blocks(&self) -> usize {
        self.keys.div_ceil(BLOCK)
    }

    /// Rows of a tile. It has no effect on results.
    fn tile(&self) -> usize {
        let most = (MOST_WEIGHTS / (self.blocks() * BLOCK).max(1)).min(MOST_QUERIES) / self.group;
        // Tiles of equal size, at least one row each.
        self.rows.div_ceil(self.rows.div_ceil(most.max(1)).max(1)).max(1)
    }
}

/// Memory for one tile.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Scaled queries: `[rows][G][D']`.
    queries: Floats,
    /// Scores, then weights relative to the block's largest: `[blocks][rows][G][BLOCK]`.
    weights: Floats,
    /// `[rows][G][blocks]`
    states: Vec<State>,
    /// Keys of a sub-block as f32: `[SUB_BLOCK][D']`.
    packed: Floats,
}

/// What is known of one query and one block.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The largest score.
    maximum: f32,
    /// The sum of weights.
    weight: f32,
    /// What a weight is to be multiplied by to be a share.
    factor: f32,
}

impl Room {
    pub(super) fn grow(&mut self, size: RoomSize) {
        let queries = size.tile() * size.group;
        self.queries.grow(queries * size.dim);
        self.weights.grow(size.blocks() * queries * BLOCK);
        self.packed.grow(SUB_BLOCK * size.dim);
        if self.states.len() < queries * size.blocks() {
            self.states.resize(queries * size.blocks(), State::default());
        }
    }
}

/// Where shares go.
pub(super) trait Target {
    /// Adds `weights * factor`, what a row pays to the first `seen` keys from `start` on through the group's head
    /// `head`. Beyond `seen` weights are 0 up to the next multiple of MAX_LANES. Without a finite factor the row's
    /// softmax is no number. Must be `#[inline(always)]`.
    fn add<S: Simd>(&mut self, s: S, head: usize, keys: Keys, weights: (&[f32], f32));
}

/// Keys of one block that a row sees.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) start: usize,
    pub(super) seen: usize,
}

/// The shares of each query head, as they are: those of the group's head `g` from `g * stride` on, one number per key.
/// A row whose softmax is not finite makes the sums of all keys that it sees NaN. What lies between the last key and
/// the next multiple of the lanes does not change.
pub(super) struct Shares<'a> {
    /// For each head as many numbers as rows see keys, rounded up to MAX_LANES.
    pub(super) sums: &'a mut [f32],
    pub(super) stride: usize,
}

impl Target for Shares<'_> {
    #[inline(always)]
    fn add<S: Simd>(&mut self, s: S, head: usize, keys: Keys, (weights, factor): (&[f32], f32)) {
        let sums = &mut self.sums[head * self.stride + keys.start..];
        if !factor.is_finite() {
            sums[..keys.seen].fill(f32::NAN);
            return;
        }
        // Beyond the last key that the row sees weights are 0.
        let padded = keys.seen.next_multiple_of(S::LANES);
        let parts = sums[..padded].chunks_exact_mut(S::LANES).zip(weights.chunks_exact(S::LANES));
        for (sum, weight) in parts {
            // SAFETY: both parts have LANES numbers.
            unsafe {
                let added = s.fma(s.load(weight.as_ptr()), s.splat(factor), s.load(sum.as_ptr()));
                s.store(added, sum.as_mut_ptr());
            }
        }
    }
}

/// Adds the shares of all rows, in order, to `to`.
///
/// Whoever makes one promises that `room` was grown to `size`, that `keys.base` plus each offset is valid for D' items,
/// that the offsets are padded, and that no row sees more keys than there are.
pub(super) struct AddShares<'a, F: RowFormat, T> {
    pub(super) queries: Queries<'a>,
    pub(super) keys: Rows<'a, F>,
    pub(super) size: RoomSize,
    pub(super) room: &'a mut Room,
    pub(super) to: &'a mut T,
}

impl<F: RowFormat, T: Target> Kernel for AddShares<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { queries, keys, size, room, to } = self;
        let rows = queries.visible.len();
        let packed = packed_offsets(keys.dim);
        for first in (0..rows).step_by(size.tile()) {
            let rows = first..(first + size.tile()).min(rows);
            let tile = Tile { of: queries, rows, size };
            tile.load(s, room);
            for block in 0..tile.seen().div_ceil(BLOCK) {
                tile.weigh(s, block, (&keys, &packed), room);
            }
            tile.share(s, room);
            for block in 0..tile.seen().div_ceil(BLOCK) {
                tile.add(s, block, room, to);
            }
        }
    }
}

/// The rows of one pass over the keys.
struct Tile<'a> {
    of: Queries<'a>,
    rows: Range<usize>,
    size: RoomSize,
}

impl Tile<'_> {
    /// Keys that some row sees.
    fn seen(&self) -> usize {
        self.of.visible[self.rows.clone()].iter().copied().max().unwrap_or(0)
    }

    fn count(&self) -> usize {
        self.rows.len() * self.of.group
    }

    /// How many keys query `query` of this tile sees.
    fn visible(&self, query: usize) -> usize {
        self.of.visible[self.rows.start + query / self.of.group]
    }

    /// Copies the queries, times 1/sqrt(D) and log2(e): weights are powers of two.
    #[inline(always)]
    fn load<S: Simd>(&self, s: S, room: &mut Room) {
        let Queries { q, stride, group, head_dim, .. } = self.of;
        let scale = std::f32::consts::LOG2_E / (head_dim as f32).sqrt();
        let mut to = room.queries.floats_mut().chunks_exact_mut(self.size.dim);
        for row in self.rows.clone() {
            let from = &q[row * stride..][..group * head_dim];
            for (query, to) in from.chunks_exact(head_dim).zip(&mut to) {
                to[..head_dim].copy_from_slice(query);
                to[head_dim..].fill(0.0);
                for part in to.chunks_exact_mut(S::LANES) {
                    // SAFETY: the part has LANES numbers.
                    unsafe { s.store(s.mul(s.load(part.as_ptr()), s.splat(scale)), part.as_mut_ptr()) };
                }
            }
        }
    }

    /// The weights of one block for all queries, and what is known of them.
    #[inline(always)]
    fn weigh<S: Simd, F: RowFormat>(
        &self,
        s: S,
        block: usize,
        (keys, packed): (&Rows<'_, F>, &PackedOffsets),
        room: &mut Room,
    ) {
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.seen());
        let count = self.count();
        let queries = room.queries.floats_mut()[..count * keys.dim].as_ptr();
        let weights = &mut room.weights.floats_mut()[block * count * BLOCK..][..count * BLOCK];
        let to = room.packed.floats_mut()[..SUB_BLOCK * keys.dim].as_mut_ptr();
        for first in (start..end).step_by(SUB_BLOCK) {
            let last = (first + SUB_BLOCK).min(end).next_multiple_of(4);
            let rows: Rows<'_, F> = Rows { base: keys.base, at: &keys.at[first..last], dim: keys.dim };
            let ahead = Ahead {
                base: keys.base.cast(),
                at: keys.at.get(last..).unwrap_or(&[]),
                item_bytes: size_of::<F::Item>(),
                row_bytes: keys.dim * size_of::<F::Item>(),
            };
            let scores = weights[first - start..].as_mut_ptr();
            // SAFETY: offsets are valid, as whoever made the kernel promised; `queries` has `count` vectors, `weights`
            // as many rows of a block, and the packed keys their own room.
            unsafe {
                if count >= LEAST_PACKED_QUERIES {
                    s.call(Pack { rows: &rows, ahead: &ahead, to });
                    let rows = Rows::<F32> { base: to, at: &packed[..rows.at.len()], dim: keys.dim };
                    score_all(s, (queries, count), &rows, &Ahead::NOTHING, scores);
                } else {
                    score_all(s, (queries, count), &rows, &ahead, scores);
                }
            }
        }
        for (query, weights) in weights.chunks_exact_mut(BLOCK).enumerate() {
            let seen = self.visible(query).saturating_sub(start).min(BLOCK);
            if seen > 0 {
                let (maximum, weight) = s.call(Softmax { scores: weights.as_mut_ptr(), n: seen });
                room.states[query * self.size.blocks() + block] = State { maximum, weight, factor: 0.0 };
            }
        }
    }

    /// What each block is of the whole.
    #[inline(always)]
    fn share<S: Simd>(&self, s: S, room: &mut Room) {
        for query in 0..self.count() {
            let blocks = self.visible(query).div_ceil(BLOCK);
            let states = &mut room.states[query * self.size.blocks()..][..blocks];
            let maximum = states.iter().fold(f32::NEG_INFINITY, |most, state| most.max(state.maximum));
            let mut total = 0.0;
            for state in &mut *states {
                state.factor = s.first(exp2(s, s.splat(state.maximum - maximum)));
                total += f64::from(state.factor) * f64::from(state.weight);
            }
            for state in states {
                state.factor = (f64::from(state.factor) * self.of.whole / total) as f32;
            }
        }
    }

    /// Adds the shares of one block, query by query.
    #[inline(always)]
    fn add<S: Simd, T: Target>(&self, s: S, block: usize, room: &mut Room, to: &mut T) {
        let start = block * BLOCK;
        let count = self.count();
        let weights = &room.weights.floats_mut()[block * count * BLOCK..][..count * BLOCK];
        for (query, weights) in weights.chunks_exact(BLOCK).enumerate() {
            let seen = self.visible(query).saturating_sub(start).min(BLOCK);
            if seen > 0 {
                let factor = room.states[query * self.size.blocks() + block].factor;
                to.add(s, query % self.of.group, Keys { start, seen }, (weights, factor));
            }
        }
    }
}

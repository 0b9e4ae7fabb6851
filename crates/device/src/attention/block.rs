//! Query rows of one KV head against one block of keys: scores, softmax, weighted sum of values.

use std::marker::PhantomData;
use std::ops::Range;

use super::BLOCK;
use super::inner::{Ahead, Rows, Softmax, accumulate, scores};
use super::scratch::{SUB_BLOCK, maximum_at, state_len, weight_at};
use crate::kv::{F32, RowFormat};
use crate::simd::{Kernel, MAX_LANES, Simd};

/// Query vectors from which converting a sub-block to f32 first is cheaper than converting it for each few of them.
pub(crate) const LEAST_PACKED_QUERIES: usize = 12;

/// The query rows of a block. Row `i` sees the first `visible + i` keys of the block, or all.
pub(super) struct Queries {
    /// `[rows][G][D']`, scaled.
    pub(super) at: *const f32,
    pub(super) rows: usize,
    /// G.
    pub(super) group: usize,
    pub(super) visible: usize,
    /// `[rows][G][BLOCK]`
    pub(super) scores: *mut f32,
    /// `[rows][G][state_len]`, overwritten.
    pub(super) states: *mut f32,
}

/// The keys and values of a block.
pub(super) struct Block<'a, F: RowFormat> {
    /// The layer's rows, at this KV head's first key.
    pub(super) base: *const F::Item,
    /// Where the rows are, padded to a multiple of 4.
    pub(super) at: &'a [usize],
    /// Keys without padding.
    pub(super) keys: usize,
    /// D'
    pub(super) dim: usize,
    /// The next block's rows, as far as they are known.
    pub(super) next: &'a [usize],
    /// Room for `[SUB_BLOCK][D']`.
    pub(super) packed: *mut f32,
}

/// Offsets of the rows of a packed sub-block, computed per dimension by the caller of [`run`].
pub(crate) type PackedOffsets = [usize; SUB_BLOCK];

pub(crate) fn packed_offsets(dim: usize) -> PackedOffsets {
    std::array::from_fn(|row| row * dim)
}

/// Computes the softmax states of all rows over this block.
///
/// # Safety
/// All pointers must be valid for the shapes given, every row must see at least one key, `block.at` must be padded,
/// and D' must be a multiple of the lanes.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, F: RowFormat>(
    s: S,
    queries: &Queries,
    block: &Block<'_, F>,
    packed: &PackedOffsets,
) {
    let stride = state_len(block.dim);
    // SAFETY: the caller's promise; see `pass` for which keys a row reaches.
    unsafe {
        pass::<S, F, Scores>(s, queries, block, packed);
        for row in 0..queries.rows {
            let seen = (queries.visible + row).min(block.keys);
            for query in row * queries.group..(row + 1) * queries.group {
                let scores = queries.scores.add(query * BLOCK);
                let (maximum, weight) = s.call(Softmax { scores, n: seen });
                let state = queries.states.add(query * stride);
                std::slice::from_raw_parts_mut(state, block.dim).fill(0.0);
                *state.add(maximum_at(block.dim)) = maximum;
                *state.add(weight_at(block.dim)) = weight;
            }
        }
        pass::<S, F, Values>(s, queries, block, packed);
    }
}

/// One of the two passes over a block's rows.
trait Pass {
    /// Whether rows are read as values, which follow the keys in memory.
    const VALUES: bool;
}

struct Scores;
struct Values;

impl Pass for Scores {
    const VALUES: bool = false;
}

impl Pass for Values {
    const VALUES: bool = true;
}

/// A pass for N queries from `first` on and keys from `key` on. Whoever makes one promises what [`scores`] and
/// [`accumulate`] ask for.
struct Tile<'a, F: RowFormat, P, const N: usize> {
    queries: &'a Queries,
    first: usize,
    key: usize,
    rows: &'a Rows<'a, F>,
    ahead: &'a Ahead<'a>,
    pass: PhantomData<P>,
}

impl<F: RowFormat, P: Pass, const N: usize> Kernel for Tile<'_, F, P, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { queries, first, key, rows, ahead, .. } = self;
        // SAFETY: promised by whoever made the tile.
        unsafe {
            let weights = queries.scores.add(first * BLOCK + key);
            if P::VALUES {
                let states = queries.states.add(first * state_len(rows.dim));
                accumulate::<S, F, N>(s, weights, rows, ahead, states);
            } else if F::CONVERTS && S::LANES < MAX_LANES {
                scores::<S, F, N, 2>(s, queries.at.add(first * rows.dim), rows, ahead, weights);
            } else {
                scores::<S, F, N, 4>(s, queries.at.add(first * rows.dim), rows, ahead, weights);
            }
        }
    }
}

/// Runs a pass over all sub-blocks: rows that see a whole sub-block together, rows that see a part of it one by one.
/// Scores are computed up to a multiple of 4 keys, which are there because the list is padded.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn pass<S: Simd, F: RowFormat, P: Pass>(
    s: S,
    queries: &Queries,
    block: &Block<'_, F>,
    packed: &PackedOffsets,
) {
    let Queries { rows, group, visible, .. } = *queries;
    let base = block.base.wrapping_add(if P::VALUES { block.dim } else { 0 });
    for start in (0..block.keys).step_by(SUB_BLOCK) {
        let end = (start + SUB_BLOCK).min(block.keys);
        let reach = |keys: usize| if P::VALUES { start + keys } else { (start + keys).next_multiple_of(4) };
        // While keys are read their values are fetched, while values are read the next block's keys.
        let ahead = Ahead {
            base: if P::VALUES { block.base.cast() } else { base.wrapping_add(block.dim).cast() },
            at: if P::VALUES { block.next.get(start..).unwrap_or(&[]) } else { &block.at[start..end] },
            item_bytes: size_of::<F::Item>(),
            row_bytes: block.dim * size_of::<F::Item>(),
        };
        let whole = end.saturating_sub(visible).min(rows);
        let first = (start + 1).saturating_sub(visible).min(whole);
        let part = |keys: usize| Rows { base, at: &block.at[start..reach(keys)], dim: block.dim };
        let full = part(end - start);
        let together = whole * group..rows * group;
        let packs = together.len() >= LEAST_PACKED_QUERIES;
        // SAFETY: the caller's promise.
        unsafe {
            for row in first..whole {
                let range = row * group..(row + 1) * group;
                tiles::<S, F, P>(s, queries, (range, start), &part(visible + row - start), &ahead);
            }
            if packs {
                s.call(Pack { rows: &full, ahead: &ahead, to: block.packed });
                let at = &packed[..full.at.len()];
                let rows = Rows { base: block.packed.cast_const(), at, dim: block.dim };
                tiles::<S, F32, P>(s, queries, (together, start), &rows, &Ahead::NOTHING);
            } else {
                tiles::<S, F, P>(s, queries, (together, start), &full, &ahead);
            }
        }
    }
}

/// Runs a pass for all queries of a range, as many at once as the registers hold. `ahead` is fetched once.
///
/// # Safety
/// As for [`scores`] and [`accumulate`].
#[inline(always)]
unsafe fn tiles<S: Simd, F: RowFormat, P: Pass>(
    s: S,
    queries: &Queries,
    (range, key): (Range<usize>, usize),
    rows: &Rows<'_, F>,
    ahead: &Ahead<'_>,
) {
    let mut left = range.len().div_ceil(S::QUERIES);
    let mut at = range.start;
    // SAFETY: the caller's promise; tiles cover the range.
    unsafe {
        while left > 0 {
            // Even tiles: four queries in registers for three are two and two.
            let n = (range.end - at).div_ceil(left);
            let ahead = if at == range.start { ahead } else { &Ahead::NOTHING };
            match n {
                1 => tile::<S, F, P, 1>(s, queries, (at, key), rows, ahead),
                2 => tile::<S, F, P, 2>(s, queries, (at, key), rows, ahead),
                3 => tile::<S, F, P, 3>(s, queries, (at, key), rows, ahead),
                _ => tile::<S, F, P, 4>(s, queries, (at, key), rows, ahead),
            }
            at += n;
            left -= 1;
        }
    }
}

/// One tile of N queries.
///
/// # Safety
/// As for [`scores`] and [`accumulate`].
#[inline(always)]
unsafe fn tile<S: Simd, F: RowFormat, P: Pass, const N: usize>(
    s: S,
    queries: &Queries,
    (first, key): (usize, usize),
    rows: &Rows<'_, F>,
    ahead: &Ahead<'_>,
) {
    // More queries than the registers hold never come: that code need not exist.
    if N <= S::QUERIES {
        s.call(Tile::<F, P, N> { queries, first, key, rows, ahead, pass: PhantomData });
    }
}

/// Converts rows to f32, one after another. Whoever makes one promises that the rows are valid for D' items and `to`
/// for as many rows of D'.
pub(crate) struct Pack<'a, F: RowFormat> {
    pub(crate) rows: &'a Rows<'a, F>,
    pub(crate) ahead: &'a Ahead<'a>,
    pub(crate) to: *mut f32,
}

impl<F: RowFormat> Kernel for Pack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, ahead, to } = self;
        for (row, &offset) in rows.at.iter().enumerate() {
            ahead.fetch(s, row);
            for d in (0..rows.dim).step_by(S::LANES) {
                // SAFETY: promised by whoever made this.
                unsafe { s.store(F::load(s, rows.base.add(offset + d)), to.add(row * rows.dim + d)) };
            }
        }
    }
}

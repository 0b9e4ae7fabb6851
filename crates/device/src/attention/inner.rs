//! The innermost loops. Each number has one order of operations, which does not depend on how many queries or keys
//! are worked on at once.
#![allow(
    clippy::needless_range_loop,
    reason = "indexes of arrays that are registers, several arrays at once"
)]

use super::BLOCK;
use super::scratch::{maximum_at, state_len, weight_at};
use crate::kv::RowFormat;
use crate::simd::{Kernel, MAX_LANES, Simd, exp2};

/// KV rows of a layer, gathered by offset.
pub(crate) struct Rows<'a, F: RowFormat> {
    pub(crate) base: *const F::Item,
    /// Offsets from `base`: for scores a multiple of 4.
    pub(crate) at: &'a [usize],
    /// D'.
    pub(crate) dim: usize,
}

/// Keys or values that will be needed soon: each is asked for while the row of the same number is worked on, so that
/// memory is busy all the time.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<'a> {
    /// Of one item of `item_bytes`, to which the offsets are relative.
    pub(crate) base: *const u8,
    pub(crate) at: &'a [usize],
    pub(crate) item_bytes: usize,
    /// Bytes of a key or a value.
    pub(crate) row_bytes: usize,
}

const CACHE_LINE: usize = 64;

impl Ahead<'_> {
    /// Nothing to fetch.
    pub(crate) const NOTHING: Self = Self { base: std::ptr::null(), at: &[], item_bytes: 0, row_bytes: 0 };

    /// Asks for row `i`, if there is one.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, s: S, i: usize) {
        let Some(&row) = self.at.get(i) else { return };
        let row = self.base.wrapping_add(row * self.item_bytes);
        s.prefetch(row);
        let mut byte = CACHE_LINE;
        while byte < self.row_bytes {
            s.prefetch(row.wrapping_add(byte));
            byte += CACHE_LINE;
        }
    }
}

/// `scores[i][j] = q[i]·key[j]` for N queries `[D']` and all keys, K at a time; rows of `scores` are [`BLOCK`] apart.
///
/// # Safety
/// `keys.base` plus each offset must be valid for D' items, `q` for N·D' numbers, `scores` for N rows of as many
/// numbers as there are keys, a multiple of K; D' is a multiple of MAX_LANES.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd, F: RowFormat, const N: usize, const K: usize>(
    s: S,
    q: *const f32,
    keys: &Rows<'_, F>,
    ahead: &Ahead<'_>,
    scores: *mut f32,
) {
    const { assert!(K == 2 || K == 4) };
    let zero = s.splat(0.0);
    for j in (0..keys.at.len()).step_by(K) {
        let mut sums = [[zero; K]; N];
        // SAFETY: see above.
        unsafe {
            let key: [*const F::Item; K] =
                std::array::from_fn(|k| keys.base.add(*keys.at.get_unchecked(j + k)));
            for d in (0..keys.dim).step_by(MAX_LANES) {
                for d in (d..d + MAX_LANES).step_by(S::LANES) {
                    let mut query = [zero; N];
                    for i in 0..N {
                        query[i] = s.load(q.add(i * keys.dim + d));
                    }
                    for k in 0..K {
                        let key = F::load(s, key[k].add(d));
                        for i in 0..N {
                            sums[i][k] = s.fma(query[i], key, sums[i][k]);
                        }
                    }
                }
            }
            let at = |i: usize| scores.add(i * BLOCK + j);
            if K == 4 {
                for (i, x) in sums.iter().enumerate() {
                    s.store_sums([x[0], x[1], x[K - 2], x[K - 1]], [at(i), at(i).add(2)]);
                }
            } else {
                // Pairs of queries; the last one of an odd number twice.
                for i in (0..N).step_by(2) {
                    let other = if i + 1 < N { i + 1 } else { i };
                    let (x, y) = (sums[i], sums[other]);
                    s.store_sums([x[0], x[1], y[0], y[1]], [at(i), at(other)]);
                }
            }
        }
        for k in 0..K {
            ahead.fetch(s, j + k);
        }
    }
}

/// `states[i][d] += sum over j of weights[i][j] * value[j][d]`, in the order of j, for N queries. Rows of `weights` are
/// [`BLOCK`] apart, rows of `states` [`state_len`].
///
/// # Safety
/// `values.base` plus each offset must be valid for D' items, `weights` for N rows of as many numbers as there are
/// values, `states` for N states; D' is a multiple of MAX_LANES.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, F: RowFormat, const N: usize>(
    s: S,
    weights: *const f32,
    values: &Rows<'_, F>,
    ahead: &Ahead<'_>,
    states: *mut f32,
) {
    let mut d = 0;
    // SAFETY: see above; D' is a multiple of MAX_LANES, so columns stay below it.
    unsafe {
        // Columns at once: as many as the registers hold beside a conversion.
        if !F::CONVERTS || S::LANES == MAX_LANES {
            while d + 4 * S::LANES <= values.dim {
                let ahead = if d == 0 { ahead } else { &Ahead::NOTHING };
                columns::<S, F, N, 4>(s, weights, values, ahead, (states, d));
                d += 4 * S::LANES;
            }
        }
        while d < values.dim {
            let ahead = if d == 0 { ahead } else { &Ahead::NOTHING };
            if S::LANES == MAX_LANES {
                columns::<S, F, N, 1>(s, weights, values, ahead, (states, d));
            } else {
                columns::<S, F, N, 2>(s, weights, values, ahead, (states, d));
            }
            d += MAX_LANES;
        }
    }
}

/// [`accumulate`] for C vectors of columns, the first of them at `.1`.
///
/// # Safety
/// As for [`accumulate`]; the columns must lie below D'.
#[inline(always)]
unsafe fn columns<S: Simd, F: RowFormat, const N: usize, const C: usize>(
    s: S,
    weights: *const f32,
    values: &Rows<'_, F>,
    ahead: &Ahead<'_>,
    (states, d): (*mut f32, usize),
) {
    let stride = state_len(values.dim);
    let mut sums = [[s.splat(0.0); C]; N];
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..N {
            for c in 0..C {
                sums[i][c] = s.load(states.add(i * stride + d + c * S::LANES));
            }
        }
        for (j, &offset) in values.at.iter().enumerate() {
            let value = values.base.add(offset + d);
            let mut weight = [s.splat(0.0); N];
            for i in 0..N {
                weight[i] = s.splat(*weights.add(i * BLOCK + j));
            }
            for c in 0..C {
                let value = F::load(s, value.add(c * S::LANES));
                for i in 0..N {
                    sums[i][c] = s.fma(weight[i], value, sums[i][c]);
                }
            }
            ahead.fetch(s, j);
        }
        for i in 0..N {
            for c in 0..C {
                s.store(sums[i][c], states.add(i * stride + d + c * S::LANES));
            }
        }
    }
}

/// Turns `n` scores (logarithms to base 2) into weights relative to the largest; returns that and their sum. Whoever
/// makes one promises that `scores` is valid for `n` numbers, rounded up to a multiple of the lanes.
pub(crate) struct Softmax {
    pub(crate) scores: *mut f32,
    pub(crate) n: usize,
}

impl Kernel for Softmax {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f32) {
        let Self { scores, n } = self;
        let padded = n.next_multiple_of(S::LANES);
        // SAFETY: promised by whoever made this.
        unsafe {
            for j in n..padded {
                *scores.add(j) = f32::NEG_INFINITY;
            }
            let mut largest = s.splat(f32::NEG_INFINITY);
            for j in (0..padded).step_by(S::LANES) {
                largest = s.max(largest, s.load(scores.add(j)));
            }
            let maximum = s.largest(largest);
            let mut sum = s.splat(0.0);
            for j in (0..padded).step_by(S::LANES) {
                let weight = exp2(s, s.sub(s.load(scores.add(j)), s.splat(maximum)));
                s.store(weight, scores.add(j));
                sum = s.add(sum, weight);
            }
            (maximum, s.sum(sum))
        }
    }
}

/// Merges the state of a later block into `state`. One that has seen no key changes nothing, and is replaced.
///
/// # Safety
/// Both must be valid states of D' = `dim`, a multiple of MAX_LANES.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(s: S, state: *mut f32, later: *const f32, dim: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if *later.add(weight_at(dim)) == 0.0 {
            return;
        }
        if *state.add(weight_at(dim)) == 0.0 {
            std::ptr::copy_nonoverlapping(later, state, state_len(dim));
            return;
        }
        let (old, new) = (s.splat(*state.add(maximum_at(dim))), s.splat(*later.add(maximum_at(dim))));
        let maximum = s.max(old, new);
        let (keep, take) = (exp2(s, s.sub(old, maximum)), exp2(s, s.sub(new, maximum)));
        for d in (0..dim).step_by(S::LANES) {
            let kept = s.mul(s.load(state.add(d)), keep);
            s.store(s.fma(s.load(later.add(d)), take, kept), state.add(d));
        }
        let kept = s.mul(s.splat(*state.add(weight_at(dim))), keep);
        let weight = s.fma(s.splat(*later.add(weight_at(dim))), take, kept);
        *state.add(weight_at(dim)) = s.first(weight);
        *state.add(maximum_at(dim)) = s.first(maximum);
    }
}

/// Divides the sum of values by the sum of weights and writes the first numbers of it to `out`.
///
/// # Safety
/// `state` must be a valid state of D' = `dim`, a multiple of MAX_LANES, and `out` not longer than D'.
#[inline(always)]
pub(super) unsafe fn normalise<S: Simd>(s: S, state: *mut f32, dim: usize, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let weight = s.splat(*state.add(weight_at(dim)));
        for d in (0..dim).step_by(S::LANES) {
            s.store(s.div(s.load(state.add(d)), weight), state.add(d));
        }
        std::ptr::copy_nonoverlapping(state, out.as_mut_ptr(), out.len());
    }
}

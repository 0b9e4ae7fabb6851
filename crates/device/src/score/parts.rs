//! Scores of any number of queries against some keys, as many queries at once as the registers hold.

use crate::attention::{Ahead, BLOCK, Rows, scores};
use crate::kv::RowFormat;
use crate::simd::{Kernel, MAX_LANES, Simd};

/// Scores of `.1` queries; rows of them are [`BLOCK`] apart. `ahead` is fetched once.
///
/// # Safety
/// As for [`scores`] with so many queries.
#[inline(always)]
pub(super) unsafe fn score_all<S: Simd, F: RowFormat>(
    s: S,
    (queries, count): (*const f32, usize),
    keys: &Rows<'_, F>,
    ahead: &Ahead<'_>,
    to: *mut f32,
) {
    let mut left = count.div_ceil(S::QUERIES);
    let mut at = 0;
    while left > 0 {
        // Even parts: four queries in registers for three are two and two.
        let n = (count - at).div_ceil(left);
        let ahead = if at == 0 { ahead } else { &Ahead::NOTHING };
        // SAFETY: the caller's promise; parts cover the queries.
        unsafe {
            let (queries, to) = (queries.add(at * keys.dim), to.add(at * BLOCK));
            match n {
                1 => score_some::<S, F, 1>(s, queries, keys, ahead, to),
                2 => score_some::<S, F, 2>(s, queries, keys, ahead, to),
                3 => score_some::<S, F, 3>(s, queries, keys, ahead, to),
                _ => score_some::<S, F, 4>(s, queries, keys, ahead, to),
            }
        }
        at += n;
        left -= 1;
    }
}

/// # Safety
/// As for [`scores`].
#[inline(always)]
unsafe fn score_some<S: Simd, F: RowFormat, const N: usize>(
    s: S,
    queries: *const f32,
    keys: &Rows<'_, F>,
    ahead: &Ahead<'_>,
    to: *mut f32,
) {
    // More queries than the registers hold never come: that code need not exist.
    if N <= S::QUERIES {
        s.call(Part::<F, N> { queries, keys, ahead, to });
    }
}

/// Scores of N queries. Whoever makes one promises what [`scores`] asks for.
struct Part<'a, F: RowFormat, const N: usize> {
    queries: *const f32,
    keys: &'a Rows<'a, F>,
    ahead: &'a Ahead<'a>,
    to: *mut f32,
}

impl<F: RowFormat, const N: usize> Kernel for Part<'_, F, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { queries, keys, ahead, to } = self;
        // SAFETY: promised by whoever made this.
        unsafe {
            if F::CONVERTS && S::LANES < MAX_LANES {
                scores::<S, F, N, 2>(s, queries, keys, ahead, to);
            } else {
                scores::<S, F, N, 4>(s, queries, keys, ahead, to);
            }
        }
    }
}

//! From the shares of one query head to its part of the candidates' scores: pooled, as integers, aggregated.

use super::{Aggregate, ONE, Pool, VOTE_BITS, VOTE_SHIFT};
use crate::simd::{Kernel, Simd};

/// Which candidates are neighbours of one: `first..end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    first: u32,
    end: u32,
}

/// Finds the neighbours of every candidate, itself included.
pub(super) fn windows(pool: Option<Pool<'_>>, to: &mut Vec<Window>) {
    to.clear();
    let Some(Pool { width, positions }) = pool else { return };
    let (mut first, mut end) = (0, 0);
    for middle in positions {
        while positions[first].index() + width / 2 < middle.index() {
            first += 1;
        }
        while positions.get(end).is_some_and(|position| position.index() <= middle.index() + width / 2) {
            end += 1;
        }
        to.push(Window { first: first as u32, end: end as u32 });
    }
}

/// What one thread has counted, and its room for one head.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// One per candidate.
    scores: Vec<i64>,
    non_finite: u64,
    /// Shares of one head's candidates, and the same pooled.
    shares: Vec<f32>,
    pooled: Vec<f32>,
    /// What votes are decided by: the bits of a share, then the index of its candidate.
    ranks: Vec<u64>,
}

impl Heads {
    /// Begins a call. Allocates only what no call before it has needed.
    pub(super) fn reset(&mut self, candidates: usize) {
        self.non_finite = 0;
        self.scores.clear();
        self.scores.resize(candidates, 0);
        self.shares.resize(candidates, 0.0);
        self.pooled.resize(candidates, 0.0);
        self.ranks.resize(candidates, 0);
    }

    pub(super) fn scores(&self) -> &[i64] {
        &self.scores
    }

    pub(super) fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// Takes the shares of the candidates from those of all keys; what is not finite counts as 0.
    #[inline(always)]
    fn pick(&mut self, shares: &[f32], candidates: &[u32]) {
        if candidates.len() == shares.len() {
            // They ascend, so all keys are candidates.
            self.shares.copy_from_slice(shares);
        } else {
            for (share, &key) in self.shares.iter_mut().zip(candidates) {
                *share = shares[key as usize];
            }
        }
        for share in &mut self.shares {
            self.non_finite += u64::from(!share.is_finite());
            *share = if share.is_finite() { *share } else { 0.0 };
        }
    }

    #[inline(always)]
    fn pool(&mut self, width: usize, windows: &[Window]) {
        for (pooled, window) in self.pooled.iter_mut().zip(windows) {
            let near = &self.shares[window.first as usize..window.end as usize];
            *pooled = near.iter().fold(0.0, |sum, share| sum + share) / width as f32;
        }
        std::mem::swap(&mut self.pooled, &mut self.shares);
    }

    #[inline(always)]
    fn aggregate(&mut self, how: Aggregate) {
        let pairs = self.scores.iter_mut().zip(&self.shares);
        match how {
            Aggregate::Sum => pairs.for_each(|(score, &share)| *score += integer(share, ONE)),
            Aggregate::Max => pairs.for_each(|(score, &share)| *score = integer(share, ONE).max(*score)),
            Aggregate::Vote { top } => {
                pairs.for_each(|(score, &share)| *score += integer(share, ONE) >> VOTE_SHIFT);
                self.vote(top.min(self.scores.len()));
            }
        }
    }

    /// One vote for each of the `top` largest shares; of equal ones, the later candidates.
    fn vote(&mut self, top: usize) {
        let ranks = self.ranks.iter_mut().zip(&self.shares).zip(0u64..);
        // Bits of numbers that are not negative have the order of the numbers.
        ranks.for_each(|((rank, share), index)| *rank = u64::from(share.to_bits()) << 32 | index);
        let rest = self.ranks.len() - top;
        if top > 0 && rest > 0 {
            self.ranks.select_nth_unstable(rest);
        }
        for &rank in &self.ranks[rest..] {
            self.scores[rank as u32 as usize] += 1 << VOTE_BITS;
        }
    }
}

/// `share` of `whole` parts, rounded to the nearest integer, and to the even one of two that are as near.
#[inline(always)]
pub(super) fn integer(share: f32, whole: i64) -> i64 {
    // 1.5 * 2^52: what is added to it is rounded to an integer, which then stands in the low bits. Unlike a conversion
    // to i64 this has vector instructions everywhere.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    // Rounding may have made a share that is a little more than 1; a larger one would carry into the votes.
    let parts = f64::from(share.min(1.0)) * whole as f64;
    (parts + ROUNDER).to_bits() as i64 - ROUNDER.to_bits() as i64
}

/// Adds the shares of one query head, one per key, to the scores.
pub(super) struct AddHead<'a> {
    pub(super) heads: &'a mut Heads,
    pub(super) shares: &'a [f32],
    pub(super) candidates: &'a [u32],
    pub(super) pool: Option<(usize, &'a [Window])>,
    pub(super) how: Aggregate,
}

/// A kernel only so that the compiler may use all instructions of the CPU.
impl Kernel for AddHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { heads, shares, candidates, pool, how } = self;
        heads.pick(shares, candidates);
        if let Some((width, windows)) = pool {
            heads.pool(width, windows);
        }
        heads.aggregate(how);
    }
}

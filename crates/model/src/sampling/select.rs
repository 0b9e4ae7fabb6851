//! Picking from logits: the greatest, the n greatest, and one drawn at random from what the cut-offs leave.

use std::cmp::Ordering;

use super::weights::{Weights, pick};

/// A place in the logits and its value.
pub(super) type Candidate = (u32, f32);

/// Bands of probability, and how many of them halve it: together they cover single precision.
const BANDS: usize = 1024;
const BANDS_PER_HALVING: f32 = 8.0;

/// The greatest logit; `None` if there is none, one is NaN or +∞, or all are −∞. A single −∞ is a masked token.
pub(super) fn maximum(logits: &[f32]) -> Option<f32> {
    const LANES: usize = 16;
    let mut greatest = [f32::NEG_INFINITY; LANES];
    // A comparison with NaN is false.
    let mut below = [true; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let logit = chunk[lane];
            below[lane] &= logit < f32::INFINITY;
            greatest[lane] = if logit > greatest[lane] { logit } else { greatest[lane] };
        }
    }
    for (lane, logit) in rest.iter().enumerate() {
        below[lane] &= *logit < f32::INFINITY;
        greatest[lane] = greatest[lane].max(*logit);
    }
    let most = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (!below.contains(&false) && most > f32::NEG_INFINITY).then_some(most)
}

/// The lowest id with this value.
pub(super) fn first_of(logits: &[f32], value: f32) -> Option<u32> {
    logits.iter().position(|logit| *logit == value).and_then(|at| u32::try_from(at).ok())
}

/// Greater logit first, then lower id.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The `count` greatest, in order. One pass with a threshold, then a sort of what was kept.
pub(super) fn greatest(logits: &[f32], count: usize) -> Vec<Candidate> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let room = (count * 2).max(64);
    let mut kept: Vec<Candidate> = Vec::with_capacity(room);
    let mut least = f32::NEG_INFINITY;
    for (id, logit) in (0u32..).zip(logits) {
        // Equal ones have a higher id than what is kept, so they lose once enough is kept.
        if *logit > least || kept.len() < count {
            kept.push((id, *logit));
            if kept.len() == room {
                kept.select_nth_unstable_by(count - 1, order);
                kept.truncate(count);
                least = kept[count - 1].1;
            }
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(count);
    kept
}

/// The cut-offs of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cutoffs {
    /// 0 keeps all.
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f32,
}

/// Draws a token. `u` is uniform in [0, 1), `most` the greatest logit, `temperature` above 0.
///
/// Each cut-off keeps a beginning of the tokens in order of probability: top-k the first k; of these, renormalised,
/// top-p the fewest that hold the mass p; min-p those with at least that share of the greatest probability. The draw
/// is from what all three keep.
pub(super) fn draw(logits: &[f32], most: f32, temperature: f32, cutoffs: Cutoffs, u: f64) -> u32 {
    let weights = Weights::new(most, temperature);
    let limited = cutoffs.top_k > 0 && cutoffs.top_k < logits.len();
    if !limited && cutoffs.top_p >= 1.0 && cutoffs.min_p <= 0.0 {
        return weights.at(logits, u);
    }
    let kept = if limited {
        let ordered = greatest(logits, cutoffs.top_k);
        let total: f64 = ordered.iter().map(|(_, logit)| f64::from(weights.of(*logit))).sum();
        cut(&ordered, weights, cutoffs, cutoffs.top_p * total)
    } else if cutoffs.top_p >= 1.0 {
        // A comparison of logits spares most of them the power; its slack leaves the decision to the weight.
        let least = 0.01 - cutoffs.min_p.log2();
        let near = (0u32..).zip(logits).filter(|(_, logit)| weights.halvings(**logit) <= least);
        let weighed = near.map(|(id, logit)| (id, weights.of(*logit)));
        weighed.filter(|(_, w)| *w >= cutoffs.min_p).map(|(id, w)| (id, f64::from(w))).collect()
    } else {
        nucleus(logits, weights, cutoffs)
    };
    let mass: f64 = kept.iter().map(|(_, weight)| weight).sum();
    pick(kept.into_iter(), u * mass)
}

/// The tokens that min-p keeps of ordered ones, until `target` of mass is reached, with their weights.
fn cut(ordered: &[Candidate], weights: Weights, cutoffs: Cutoffs, target: f64) -> Vec<(u32, f64)> {
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for (id, logit) in ordered {
        let weight = weights.of(*logit);
        // The greatest weighs 1 and passes every min-p.
        if weight < cutoffs.min_p || weight == 0.0 {
            break;
        }
        kept.push((*id, f64::from(weight)));
        mass += f64::from(weight);
        if cutoffs.top_p < 1.0 && mass >= target {
            break;
        }
    }
    kept
}

/// The tokens that top-p and min-p keep of the whole vocabulary, with their weights. The tokens are put into narrow
/// bands of probability; only the band in which the mass p is reached needs to be in order.
fn nucleus(logits: &[f32], weights: Weights, cutoffs: Cutoffs) -> Vec<(u32, f64)> {
    let band = |logit: f32| ((weights.halvings(logit) * BANDS_PER_HALVING) as usize).min(BANDS - 1);
    let mut masses = [0.0f64; BANDS];
    for logit in logits {
        masses[band(*logit)] += f64::from(weights.of(*logit));
    }
    let target = cutoffs.top_p * masses.iter().sum::<f64>();
    let (mut last, mut above) = (0, 0.0);
    while last < BANDS - 1 && above + masses[last] < target {
        above += masses[last];
        last += 1;
    }
    let mut kept = Vec::new();
    let mut partly = Vec::new();
    for (id, logit) in (0u32..).zip(logits) {
        let place = band(*logit);
        if place == last {
            partly.push((id, *logit));
        } else if place < last && weights.of(*logit) >= cutoffs.min_p {
            kept.push((id, f64::from(weights.of(*logit))));
        }
    }
    partly.sort_unstable_by(order);
    kept.extend(cut(&partly, weights, cutoffs, target - above));
    kept
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;

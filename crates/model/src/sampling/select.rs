//! Picking from logits: the greatest, the n greatest, and one drawn at random from what the cut-offs leave.

use std::cmp::Ordering;

use super::weights::{Weights, pick};

/// A place in the logits and its value.
pub(super) type Candidate = (u32, f32);

/// Candidates tried first where the probability mass decides how many are needed.
const FIRST: usize = 64;

/// The greatest logit; `None` if there is none, one is NaN or +∞, or all are −∞. A single −∞ is a masked token.
pub(super) fn maximum(logits: &[f32]) -> Option<f32> {
    const LANES: usize = 16;
    let mut greatest = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let logit = chunk[lane];
            bad[lane] |= !(logit < f32::INFINITY);
            greatest[lane] = if logit > greatest[lane] { logit } else { greatest[lane] };
        }
    }
    for (lane, logit) in rest.iter().enumerate() {
        bad[lane] |= !(*logit < f32::INFINITY);
        greatest[lane] = greatest[lane].max(*logit);
    }
    let most = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (!bad.contains(&true) && most > f32::NEG_INFINITY).then_some(most)
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
        let total = ordered.iter().map(|(_, logit)| f64::from(weights.of(*logit))).sum();
        cut(&ordered, weights, cutoffs, total).0
    } else if cutoffs.top_p >= 1.0 {
        let all = (0u32..).zip(logits.iter().map(|logit| weights.of(*logit)));
        all.filter(|(_, weight)| *weight >= cutoffs.min_p).map(|(id, weight)| (id, f64::from(weight))).collect()
    } else {
        grow(logits, weights, cutoffs)
    };
    let mass: f64 = kept.iter().map(|(_, weight)| weight).sum();
    pick(kept.into_iter(), u * mass)
}

/// The tokens that top-p and min-p keep of ordered ones, with their weights, and whether a cut-off was reached.
fn cut(ordered: &[Candidate], weights: Weights, cutoffs: Cutoffs, total: f64) -> (Vec<(u32, f64)>, bool) {
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for (id, logit) in ordered {
        let weight = weights.of(*logit);
        // The greatest weighs 1 and always stays.
        if !kept.is_empty() && (weight < cutoffs.min_p || weight == 0.0) {
            return (kept, true);
        }
        kept.push((*id, f64::from(weight)));
        mass += f64::from(weight);
        if cutoffs.top_p < 1.0 && mass >= cutoffs.top_p * total {
            return (kept, true);
        }
    }
    (kept, false)
}

/// As [`cut`] over the whole vocabulary, ordering only as many tokens as turn out to be needed.
fn grow(logits: &[f32], weights: Weights, cutoffs: Cutoffs) -> Vec<(u32, f64)> {
    let total = weights.total(logits);
    let mut count = FIRST;
    loop {
        let (kept, reached) = cut(&greatest(logits, count), weights, cutoffs, total);
        if reached || count >= logits.len() {
            return kept;
        }
        count = count.saturating_mul(8);
    }
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;

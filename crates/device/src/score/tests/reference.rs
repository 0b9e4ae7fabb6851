//! Scores equal a naive computation in f64 over the rows as they are stored.

use super::*;

/// Shares of all keys by one query over the first `visible` of them, in f64.
pub(super) fn softmax(case: &Case, (layer, head): (usize, usize), q: &[f32], visible: usize) -> Vec<f64> {
    let mut key = vec![0.0; case.sizes.head_dim];
    let mut logit = |slot: &SlotId| {
        case.kv.key(layer, *slot, head / case.sizes.group, &mut key);
        let dot: f64 = key.iter().zip(q).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
        dot / (case.sizes.head_dim as f64).sqrt()
    };
    let logits: Vec<f64> = case.keys[..visible].iter().map(&mut logit).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..case.keys.len()).map(|key| weights.get(key).map_or(0.0, |weight| weight / total)).collect()
}

/// The candidates' shares of each layer and query head, pooled, and how many were not finite.
pub(super) fn shares(case: &Case, width: usize) -> (Vec<Vec<f64>>, u64) {
    let Sizes { layers, rows, head_dim, .. } = case.sizes;
    let heads = case.sizes.heads();
    let mut non_finite = 0;
    let mut all = Vec::new();
    for (layer, head) in (0..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))) {
        let mut mean = vec![0.0; case.keys.len()];
        for (row, &visible) in case.visible.iter().enumerate() {
            let at = ((layer * rows + row) * heads + head) * head_dim;
            let share = softmax(case, (layer, head), &case.queries[at..at + head_dim], visible);
            mean.iter_mut().zip(share).for_each(|(mean, share)| *mean += share / rows as f64);
        }
        let mut own: Vec<f64> = case.candidates.iter().map(|&key| mean[key as usize]).collect();
        for share in own.iter_mut().filter(|share| !share.is_finite()) {
            (*share, non_finite) = (0.0, non_finite + 1);
        }
        all.push(if width > 0 { pooled(case, &own, width) } else { own });
    }
    (all, non_finite)
}

fn pooled(case: &Case, shares: &[f64], width: usize) -> Vec<f64> {
    let near = |a: Position, b: Position| a.index().abs_diff(b.index()) <= width / 2;
    let mean = |middle: &Position| {
        let all = case.positions.iter().zip(shares);
        all.filter(|(position, _)| near(**position, *middle)).map(|(_, share)| share).sum::<f64>()
            / width as f64
    };
    case.positions.iter().map(mean).collect()
}

/// Whether a sum of `count` rounded shares is what it should be: 1e-4 of it, and half a part each for rounding.
pub(super) fn near(found: i64, expected: f64, count: usize) -> bool {
    (found as f64 - expected).abs() <= 1e-4 * expected + count as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sums_and_maxima_equal_the_naive_ones(seed in any::<u64>(), sizes in sizes(), width in widths()) {
        let case = Case::new(seed, sizes);
        let (shares, _) = shares(&case, width);
        for isa in Isa::available() {
            let (sums, scored) = case.score(Aggregate::Sum, width, isa);
            prop_assert_eq!(scored.non_finite, 0);
            let (maxima, _) = case.score(Aggregate::Max, width, isa);
            for c in 0..case.candidates.len() {
                let sum: f64 = shares.iter().map(|head| head[c] * ONE as f64).sum();
                prop_assert!(near(sums[c], sum, shares.len()), "{isa:?} {c}: {} {sum}", sums[c]);
                let most = shares.iter().map(|head| head[c] * ONE as f64).fold(0.0, f64::max);
                prop_assert!(near(maxima[c], most, 1), "{isa:?} {c}: {} {most}", maxima[c]);
            }
        }
    }

    #[test]
    fn shares_of_all_keys_add_up_to_one_per_head(seed in any::<u64>(), sizes in sizes()) {
        let case = Case::new(seed, sizes).whole();
        let expected = (sizes.layers * sizes.heads()) as f64 * ONE as f64;
        for isa in Isa::available() {
            let sum: i64 = case.score(Aggregate::Sum, 0, isa).0.iter().sum();
            prop_assert!((sum as f64 / expected - 1.0).abs() < 1e-5, "{isa:?}: {sum} of {expected}");
        }
    }
}

#[test]
fn extreme_logits_do_not_overflow() {
    let sizes =
        Sizes { layers: 1, kv_heads: 1, group: 2, head_dim: 16, rows: 3, keys: 600, row_type: RowType::F32 };
    let mut case = Case::new(3, sizes).whole();
    case.queries.iter_mut().for_each(|q| *q *= 1e4);
    for isa in Isa::available() {
        let (sums, scored) = case.score(Aggregate::Sum, 0, isa);
        assert_eq!(scored.non_finite, 0, "{isa:?}");
        // Each row gives nearly all to one key.
        let sum: i64 = sums.iter().sum();
        assert!((sum as f64 / (2.0 * ONE as f64) - 1.0).abs() < 1e-5, "{isa:?}: {sum}");
        assert!(sums.iter().filter(|&&sum| sum > ONE / 10).count() <= 6, "{isa:?}");
    }
}

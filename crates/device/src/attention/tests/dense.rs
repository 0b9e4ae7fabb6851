//! T1: attention over a live list is dense attention with minus infinity on dead positions.

use super::*;
use proptest::prelude::*;

/// A row of D numbers by position and KV head.
pub(super) type RowOf<'a> = &'a dyn Fn(usize, usize) -> &'a [f32];

/// Dense attention in f64 over all positions, with a mask.
pub(super) fn dense<'a>(case: &Case, key: RowOf<'a>, value: RowOf<'a>) -> Vec<f32> {
    let Sizes { group, head_dim, positions, rows, .. } = case.sizes;
    let mut out = vec![0.0; case.q.len()];
    for row in 0..rows {
        let position = positions - rows + row;
        for head in 0..case.heads() {
            let at = (row * case.heads() + head) * head_dim;
            let q = &case.q[at..at + head_dim];
            let logit = |p: usize| {
                let masked = p > position || !case.live[p];
                let dot = || {
                    key(p, head / group)
                        .iter()
                        .zip(q)
                        .map(|(&k, &q)| f64::from(k) * f64::from(q))
                        .sum::<f64>()
                };
                if masked { f64::NEG_INFINITY } else { dot() / (head_dim as f64).sqrt() }
            };
            let logits: Vec<f64> = (0..positions).map(logit).collect();
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; head_dim];
            for (p, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                for (sum, v) in sum.iter_mut().zip(value(p, head / group)) {
                    *sum += weight / total * f64::from(*v);
                }
            }
            for (out, sum) in out[at..].iter_mut().zip(sum) {
                *out = sum as f32;
            }
        }
    }
    out
}

pub(super) fn row(of: &[f32], sizes: Sizes, p: usize, head: usize) -> &[f32] {
    &of[(p * sizes.kv_heads + head) * sizes.head_dim..][..sizes.head_dim]
}

fn dense_over(case: &Case, keys: &[f32], values: &[f32]) -> Vec<f32> {
    dense(case, &|p, head| row(keys, case.sizes, p, head), &|p, head| row(values, case.sizes, p, head))
}

pub(super) fn dense_as_given(case: &Case) -> Vec<f32> {
    dense_over(case, &case.keys, &case.values)
}

/// The reference over the rows as they are stored, so that only the kernel's own error is seen.
fn dense_as_stored(case: &Case) -> Vec<f32> {
    let (mut keys, mut values) = (case.keys.clone(), case.values.clone());
    let Sizes { kv_heads, head_dim, .. } = case.sizes;
    let rows = keys.chunks_exact_mut(head_dim).zip(values.chunks_exact_mut(head_dim));
    for (i, (key, value)) in rows.enumerate() {
        case.kv.key(LAYER, case.slots[i / kv_heads], i % kv_heads, key);
        case.kv.value(LAYER, case.slots[i / kv_heads], i % kv_heads, value);
    }
    dense_over(case, &keys, &values)
}

pub(super) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if a.is_nan() || b.is_nan() { f32::INFINITY } else { (a - b).abs() })
        .fold(0.0, f32::max)
}

pub(super) fn sizes() -> impl Strategy<Value = Sizes> {
    let dims =
        prop_oneof![1usize..20, Just(32), Just(64), Just(72), Just(80), Just(96), Just(128), 20usize..140];
    // Most lists are short; some end at, before and after a block.
    let positions = prop_oneof![1usize..40, 40usize..700, 250usize..262, 510usize..516];
    (1usize..4, 1usize..10, dims, positions, 0usize..40, prop_oneof![0u32..101, Just(100)]).prop_map(
        |(kv_heads, group, head_dim, positions, rows, live_percent)| {
            let rows = (rows + 1).min(positions);
            Sizes { kv_heads, group, head_dim, positions, rows, live_percent }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn t1_live_lists_equal_dense_attention_with_a_mask(seed in any::<u64>(), sizes in sizes(), threads in 1usize..5) {
        let mut case = Case::new(seed, sizes, RowType::F32);
        let expected = dense_as_given(&case);
        for isa in Isa::available() {
            let chunks = case.chunks();
            let found = case.attend(threads, isa, &chunks);
            let worst = largest_difference(&found, &expected);
            prop_assert!(worst <= 1e-5, "{isa:?} {chunks:?}: {worst:e}");
        }
    }

    #[test]
    fn half_rows_lose_only_what_storing_loses(seed in any::<u64>(), sizes in sizes(), f16 in any::<bool>()) {
        let mut case = Case::new(seed, sizes, if f16 { RowType::F16 } else { RowType::Bf16 });
        let expected = dense_as_stored(&case);
        for isa in Isa::available() {
            let chunks = case.chunks();
            let worst = largest_difference(&case.attend(2, isa, &chunks), &expected);
            prop_assert!(worst <= 1e-5, "{isa:?} {chunks:?}: {worst:e}");
        }
    }
}

/// How far half rows are from the numbers they were made of: what a choice of row type costs.
#[test]
fn rounding_of_rows_is_bounded() {
    let sizes = Sizes { kv_heads: 3, group: 3, head_dim: 64, positions: 600, rows: 8, live_percent: 70 };
    for (rows, most) in [(RowType::F32, 1e-5), (RowType::F16, 2e-3), (RowType::Bf16, 2e-2)] {
        let case = Case::new(1, sizes, rows);
        let worst = largest_difference(&case.attend(1, Isa::best(), &[8]), &dense_as_given(&case));
        println!("{rows:?}: largest error {worst:e}");
        assert!(worst <= most, "{rows:?}: {worst:e}");
    }
}

#[test]
fn extreme_logits_do_not_overflow() {
    let sizes = Sizes { kv_heads: 1, group: 2, head_dim: 16, positions: 600, rows: 3, live_percent: 80 };
    let mut case = Case::new(3, sizes, RowType::F32);
    case.q.iter_mut().for_each(|q| *q *= 1e4);
    let expected = dense_as_given(&case);
    for isa in Isa::available() {
        let worst = largest_difference(&case.attend(2, isa, &[3]), &expected);
        // Logits of 1e5 carry a rounding error of 1e-2 themselves; a wrong maximum would give NaN or 0.
        assert!(worst <= 0.1, "{isa:?}: {worst:e}");
    }
}

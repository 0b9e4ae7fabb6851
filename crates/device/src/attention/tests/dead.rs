//! T2, T5 and E18: what is not live does not matter, whatever it holds; sentinel values would matter.

use super::dense::{dense, dense_as_given, largest_difference, row, sizes};
use super::*;
use crate::attention::inner::merge;
use crate::attention::scratch::{maximum_at, state_len, weight_at};
use crate::simd::{Kernel, Simd, dispatch};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn t2_e18_poisoned_dead_and_free_slots_change_no_bit(seed in any::<u64>(), sizes in sizes(), rows in 0usize..3) {
        let rows = [RowType::F32, RowType::F16, RowType::Bf16][rows];
        let mut case = Case::new(seed, sizes, rows);
        let chunks = case.chunks();
        let clean: Vec<_> = Isa::available().into_iter().map(|isa| bits(&case.attend(2, isa, &chunks))).collect();
        let live = case.live_before(sizes.positions);
        let infinite = vec![f32::INFINITY; sizes.kv_heads * sizes.head_dim];
        for slot in (0..case.kv.shape().slots as u32).map(SlotId).filter(|slot| !live.contains(slot)) {
            case.kv.poison(slot);
            if !slot.is_dead() && case.rng.random() {
                case.kv.write(LAYER, &[slot], &infinite, &infinite);
            }
        }
        for (isa, clean) in Isa::available().into_iter().zip(clean) {
            prop_assert_eq!(bits(&case.attend(2, isa, &chunks)), clean, "{:?}", isa);
        }
    }
}

/// A sequence whose context is mostly dead.
fn mostly_dead() -> Case {
    Case::new(
        11,
        Sizes { kv_heads: 2, group: 3, head_dim: 32, positions: 1_100, rows: 1, live_percent: 10 },
        RowType::F32,
    )
}

/// Attention over all positions where each dead one reads a row full of `sentinel` instead of being left out.
fn with_sentinel(case: &Case, sentinel: f32) -> Vec<f32> {
    let all = Case { live: vec![true; case.live.len()], ..mostly_dead() };
    let dead = vec![sentinel; case.sizes.head_dim];
    let read = |of, p, head| if case.live[p] { row(of, case.sizes, p, head) } else { &dead[..] };
    dense(&all, &|p, head| read(&case.keys, p, head), &|p, head| read(&case.values, p, head))
}

#[test]
fn t5_a_row_of_zeros_would_take_softmax_mass() {
    let case = mostly_dead();
    let difference = largest_difference(&with_sentinel(&case, 0.0), &dense_as_given(&case));
    assert!(
        difference > 0.05,
        "{difference}: the kernel must exclude dead positions, not read zeros for them"
    );
}

#[test]
fn t5_a_row_of_large_negative_numbers_would_take_all_softmax_mass() {
    let case = mostly_dead();
    let found = with_sentinel(&case, -1e4);
    // A query whose components sum to a negative number scores such a row highest of all.
    let takes_all = |(head, q): (usize, &[f32])| q.iter().sum::<f32>() < 0.0 && found[head * 32] == -1e4;
    let heads = case.q.chunks_exact(32).enumerate().filter(|&head| takes_all(head)).count();
    assert!(heads > 0, "the counter-example must show up in some head");
    assert!(
        case.attend(1, Isa::best(), &[1]).iter().all(|x| x.abs() <= 2.0),
        "while the kernel stays among the values"
    );
}

#[test]
fn e18_a_live_nan_is_seen_not_hidden() {
    for isa in Isa::available() {
        let sizes = Sizes { kv_heads: 1, group: 2, head_dim: 16, positions: 300, rows: 6, live_percent: 100 };
        let mut case = Case::new(2, sizes, RowType::F32);
        case.kv.poison(case.slots[296]);
        let out = case.attend(2, isa, &[6]);
        let row = 2 * 16;
        assert!(out[..2 * row].iter().all(|x| x.is_finite()), "{isa:?}: rows before it");
        assert!(out[2 * row..].iter().all(|x| x.is_nan()), "{isa:?}: rows that see it");
    }
}

#[test]
fn the_dead_slot_in_a_live_list_is_a_bug_that_is_caught() {
    let sizes = Sizes { kv_heads: 1, group: 1, head_dim: 8, positions: 4, rows: 1, live_percent: 100 };
    for bad in [SlotId::DEAD, SlotId(10_000)] {
        let mut case = Case::new(2, sizes, RowType::F32);
        case.slots[1] = bad;
        let outcome = std::panic::catch_unwind(|| case.attend(2, Isa::best(), &[1]));
        let message = outcome.unwrap_err();
        assert!(message.downcast_ref::<String>().unwrap().contains("in a live list"));
    }
}

/// Merges `later` into `state`.
struct Merge<'a>(&'a mut [f32], &'a [f32], usize);

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the tests below pass states of D' = `.2`.
        unsafe { merge(s, self.0.as_mut_ptr(), self.1.as_ptr(), self.2) };
    }
}

#[test]
fn t1_e18_a_split_without_live_rows_merges_as_nothing() {
    let dim = 16;
    let mut seen = vec![0.5; state_len(dim)];
    (seen[maximum_at(dim)], seen[weight_at(dim)]) = (3.0, 2.0);
    // What an empty split's memory holds must not matter either.
    let mut empty = vec![f32::NAN; state_len(dim)];
    (empty[maximum_at(dim)], empty[weight_at(dim)]) = (f32::NEG_INFINITY, 0.0);
    for isa in Isa::available() {
        let mut state = seen.clone();
        dispatch(isa, Merge(&mut state, &empty, dim));
        assert_eq!(state, seen, "{isa:?}: empty after");
        let mut state = empty.clone();
        dispatch(isa, Merge(&mut state, &seen, dim));
        assert_eq!(state, seen, "{isa:?}: empty before");
        let mut state = empty.clone();
        dispatch(isa, Merge(&mut state, &empty, dim));
        assert_eq!(state[weight_at(dim)], 0.0, "{isa:?}: both empty");
    }
}

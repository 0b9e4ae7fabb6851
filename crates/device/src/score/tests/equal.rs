//! Equal bits: whatever the threads, the scratch, and what is not in the list holds.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn threads_and_scratch_change_no_bit(
        seed in any::<u64>(), sizes in sizes(), width in widths(), aggregate in aggregates(),
    ) {
        let case = Case::new(seed, sizes);
        // A scratch that a larger call with other numbers has left behind.
        let mut used = ScoreScratch::default();
        let other = Case::new(!seed, Sizes { keys: 700, rows: 12, group: 5, ..sizes });
        for isa in Isa::available() {
            let call = case.call(aggregate, width, isa);
            let alone = scored(&call, 1, &mut ScoreScratch::default());
            scored(&other.call(Aggregate::Sum, 3, isa), 3, &mut used);
            for threads in [1, 2, 3] {
                prop_assert_eq!(&scored(&call, threads, &mut used), &alone, "{:?} {}", isa, threads);
            }
        }
    }

    #[test]
    fn what_no_row_sees_changes_no_bit(
        seed in any::<u64>(), sizes in sizes(), width in widths(), aggregate in aggregates(),
    ) {
        let mut case = Case::new(seed, sizes);
        let clean: Vec<_> = Isa::available().into_iter().map(|isa| case.score(aggregate, width, isa)).collect();
        let seen = case.visible.iter().copied().max().unwrap();
        let infinite = vec![f32::INFINITY; sizes.kv_heads * sizes.head_dim];
        for slot in (0..case.kv.shape().slots as u32).map(SlotId) {
            if !case.keys[..seen].contains(&slot) {
                case.kv.poison(slot);
                if !slot.is_dead() && case.rng.random() {
                    case.kv.write(0, &[slot], &infinite, &infinite);
                }
            }
        }
        for (isa, clean) in Isa::available().into_iter().zip(clean) {
            prop_assert_eq!(case.score(aggregate, width, isa), clean, "{:?}", isa);
        }
    }

    #[test]
    fn instruction_sets_differ_by_rounding_only(seed in any::<u64>(), sizes in sizes(), width in widths()) {
        let case = Case::new(seed, sizes);
        let (portable, _) = case.score(Aggregate::Sum, width, Isa::Portable);
        for isa in Isa::available() {
            let (scores, _) = case.score(Aggregate::Sum, width, isa);
            for (&a, &b) in scores.iter().zip(&portable) {
                prop_assert!(reference::near(a, b as f64, sizes.layers * sizes.heads()), "{isa:?}: {a} {b}");
            }
        }
    }
}

//! Attention mass of one layer and span.

use super::reference::softmax;
use super::*;

/// The same case as one span of `layer`: the rows are the last keys.
struct Span<'a> {
    case: &'a Case,
    layer: usize,
    rows: usize,
}

impl Span<'_> {
    fn q(&self) -> &[f32] {
        let row = self.case.sizes.heads() * self.case.sizes.head_dim;
        &self.case.queries[..self.rows * row]
    }

    fn mass(&self, threads: usize, isa: Isa, out: &mut [i64], scratch: &mut ScoreScratch) -> Scored {
        let (context, own) = self.case.keys.split_at(self.case.keys.len() - self.rows);
        let Case { kv, sizes, .. } = self.case;
        let call = MassCall {
            kv,
            layer: self.layer,
            context,
            own,
            q: self.q(),
            heads: QueryHeads::whole(sizes.heads(), sizes.kv_heads),
            isa,
        };
        mass(&pool_of(threads), &call, out, scratch)
    }

    fn naive(&self) -> Vec<f64> {
        let Sizes { head_dim, .. } = self.case.sizes;
        let (heads, keys) = (self.case.sizes.heads(), self.case.keys.len());
        let mut sums = vec![0.0; keys];
        for (i, q) in self.q().chunks_exact(head_dim).enumerate() {
            let visible = keys - self.rows + i / heads + 1;
            let share = softmax(self.case, (self.layer, i % heads), q, visible);
            sums.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
        }
        sums
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn mass_is_what_all_rows_and_heads_give(seed in any::<u64>(), sizes in sizes()) {
        let case = Case::new(seed, Sizes { rows: sizes.rows.max(40), ..sizes });
        let rows = sizes.rows.min(sizes.keys);
        let span = Span { case: &case, layer: sizes.layers - 1, rows };
        let expected = span.naive();
        let whole = (rows * sizes.heads()) as f64;
        for isa in Isa::available() {
            let mut out = vec![0; sizes.keys];
            let scored = span.mass(2, isa, &mut out, &mut ScoreScratch::default());
            prop_assert_eq!(scored, Scored::default());
            for (j, (&found, &expected)) in out.iter().zip(&expected).enumerate() {
                let found = found as f64 / MASS_ONE as f64;
                // Each of the summands may be rounded by half a part.
                let rounding = whole / MASS_ONE as f64;
                let error = (found - expected).abs();
                prop_assert!(error <= 1e-4 * expected + rounding, "{isa:?} {j}: {found} {expected}");
            }
            let total = out.iter().map(|&mass| mass as f64).sum::<f64>() / MASS_ONE as f64;
            prop_assert!((total / whole - 1.0).abs() < 1e-5, "{isa:?}: {total} of {whole}");
        }
    }

    #[test]
    fn threads_and_scratch_change_no_bit_and_mass_is_added(seed in any::<u64>(), sizes in sizes()) {
        let case = Case::new(seed, Sizes { rows: 70, ..sizes });
        let span = Span { case: &case, layer: 0, rows: 70.min(sizes.keys) };
        for isa in Isa::available() {
            let mut alone = vec![3; sizes.keys];
            span.mass(1, isa, &mut alone, &mut ScoreScratch::default());
            prop_assert!(alone.iter().all(|&mass| mass >= 3));
            let mut used = ScoreScratch::default();
            for threads in [3, 2, 1] {
                let mut out = vec![3; sizes.keys];
                span.mass(threads, isa, &mut out, &mut used);
                prop_assert_eq!(&out, &alone, "{:?} {}", isa, threads);
            }
        }
    }

    /// Shards that own whole query heads add up to one machine, wherever the heads are cut.
    #[test]
    fn shards_add_up_to_the_whole(seed in any::<u64>(), sizes in sizes(), cut in any::<proptest::sample::Index>()) {
        let case = Case::new(seed, Sizes { rows: 40, ..sizes });
        let rows = 40.min(sizes.keys);
        let whole = Span { case: &case, layer: 0, rows };
        let (context, own) = case.keys.split_at(sizes.keys - rows);
        let (heads, row) = (sizes.heads(), sizes.heads() * sizes.head_dim);
        let group = cut.index(sizes.group) + 1;
        for isa in Isa::available() {
            let mut expected = vec![0; sizes.keys];
            whole.mass(2, isa, &mut expected, &mut ScoreScratch::default());
            let mut sums = vec![0; sizes.keys];
            // Of each KV head's group the first heads, and then the others, as two shards with all KV heads.
            for part in [0..group, group..sizes.group] {
                if part.is_empty() {
                    continue;
                }
                let kept: Vec<usize> = (0..heads).filter(|head| part.contains(&(head % sizes.group))).collect();
                let q: Vec<f32> = whole
                    .q()
                    .chunks_exact(row)
                    .flat_map(|row| kept.iter().flat_map(|head| &row[head * sizes.head_dim..][..sizes.head_dim]))
                    .copied()
                    .collect();
                let heads = QueryHeads::whole(kept.len(), sizes.kv_heads);
                let call = MassCall { kv: &case.kv, layer: 0, context, own, q: &q, heads, isa };
                mass(&pool_of(2), &call, &mut sums, &mut ScoreScratch::default());
            }
            prop_assert_eq!(&sums, &expected, "{:?}", isa);
        }
    }
}

#[test]
fn a_bad_row_adds_nothing_and_is_counted() {
    let sizes =
        Sizes { layers: 1, kv_heads: 2, group: 2, head_dim: 8, rows: 2, keys: 20, row_type: RowType::F16 };
    let mut case = Case::new(1, sizes);
    case.queries[0] = f32::NAN;
    let span = Span { case: &case, layer: 0, rows: 2 };
    for isa in Isa::available() {
        let mut out = vec![0; 20];
        let scored = span.mass(2, isa, &mut out, &mut ScoreScratch::default());
        // Row 0 sees all but the last key; of its query heads only the first is bad.
        assert_eq!(scored.non_finite, 19, "{isa:?}");
        let total = out.iter().sum::<i64>() as f64 / MASS_ONE as f64;
        assert!((total - 7.0).abs() < 1e-4, "{isa:?}: the other 7 rows and heads count, {total}");
    }
}

#[test]
fn an_empty_span_adds_nothing() {
    let sizes =
        Sizes { layers: 1, kv_heads: 1, group: 1, head_dim: 8, rows: 1, keys: 5, row_type: RowType::F32 };
    let case = Case::new(1, sizes);
    let mut out = vec![7; 5];
    Span { case: &case, layer: 0, rows: 0 }.mass(2, Isa::best(), &mut out, &mut ScoreScratch::default());
    assert_eq!(out, vec![7; 5]);
}

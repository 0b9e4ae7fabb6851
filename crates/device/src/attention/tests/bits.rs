//! Equal bits: a row's output does not depend on the batch, the chunks, the threads or the scratch.

use super::*;
use proptest::prelude::*;

use super::dense::sizes;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn chunks_and_threads_change_no_bit(
        seed in any::<u64>(), sizes in sizes(), rows in 0usize..3, threads in (1usize..6, 1usize..6),
    ) {
        let rows = [RowType::F32, RowType::F16, RowType::Bf16][rows];
        let mut case = Case::new(seed, sizes, rows);
        for isa in Isa::available() {
            let one_by_one = vec![1; sizes.rows];
            let decoded = bits(&case.attend(threads.0, isa, &one_by_one));
            let whole = bits(&case.attend(threads.1, isa, &[sizes.rows]));
            prop_assert_eq!(&decoded, &whole, "{:?}: decoded against prefilled", isa);
            let chunks = case.chunks();
            prop_assert_eq!(&decoded, &bits(&case.attend(threads.1, isa, &chunks)), "{:?} {:?}", isa, chunks);
        }
    }

    #[test]
    fn neighbours_in_a_batch_change_no_bit(
        seed in any::<u64>(), kv_heads in 1usize..4, group in 1usize..5, count in 2usize..6, threads in 1usize..5,
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        let head_dim = rng.random_range(1..70);
        let shape = KvShape { layers: 2, slots: 3_000, kv_heads, head_dim };
        let row = kv_heads * group * head_dim;
        let mut number = || rng.random::<f32>() * 4.0 - 2.0;
        let mut kv = KvRows::new(shape, RowType::F16).unwrap();
        let all: Vec<SlotId> = (1..3_000).map(SlotId).collect();
        let keys: Vec<f32> = (0..all.len() * kv_heads * head_dim).map(|_| number()).collect();
        kv.write(LAYER, &all, &keys, &keys);
        // Sequences of very different lengths, some decoded, some prefilled, sharing slots as prefixes do.
        let lists: Vec<(Vec<SlotId>, usize)> = (0..count).map(|_| {
            let live = rng.random_range(1..700);
            let rows = if rng.random() { 1 } else { rng.random_range(1..=live.min(40)) };
            ((0..live).map(|_| SlotId(rng.random_range(1..3_000))).collect(), rows)
        }).collect();
        let gap = rng.random_range(0..3);
        let total: usize = lists.iter().map(|(_, rows)| rows + gap).sum();
        let q: Vec<f32> = (0..total * row).map(|_| rng.random::<f32>() - 0.5).collect();
        let mut first = 0;
        let mut spans = Vec::new();
        for (live, rows) in &lists {
            let (context, own) = live.split_at(live.len() - rows);
            spans.push(Span { rows: first..first + rows, context, own });
            first += rows + gap;
        }
        let pool = Threads::new(NonZeroUsize::new(threads).unwrap());
        let alone = Threads::new(NonZeroUsize::MIN);
        let mut scratch = AttendScratch::default();
        for isa in Isa::available() {
            let call = AttendCall { kv: &kv, layer: LAYER, spans: &spans, q: &q, heads: kv_heads * group, isa };
            let mut together = vec![9.0; q.len()];
            attend(&pool, &call, &mut together, &mut scratch);
            let mut expected = vec![9.0; q.len()];
            for span in &spans {
                let call = AttendCall { spans: std::slice::from_ref(span), ..call };
                attend(&alone, &call, &mut expected, &mut AttendScratch::default());
            }
            prop_assert_eq!(bits(&together), bits(&expected), "{:?}; rows outside the spans keep their value", isa);
        }
    }
}

#[test]
fn an_empty_batch_and_an_empty_span_do_nothing() {
    let sizes = Sizes { kv_heads: 2, group: 2, head_dim: 8, positions: 10, rows: 1, live_percent: 100 };
    let case = Case::new(5, sizes, RowType::F32);
    let threads = Threads::new(NonZeroUsize::new(2).unwrap());
    let mut out = vec![7.0; case.q.len()];
    let context = case.live_before(9);
    for spans in [vec![], vec![Span { rows: 0..0, context: &context, own: &[] }]] {
        attend(&threads, &case.call(&spans, &case.q, Isa::best()), &mut out, &mut AttendScratch::default());
        assert!(out.iter().all(|&x| x == 7.0));
    }
}

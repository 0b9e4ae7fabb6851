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
            let heads = QueryHeads::whole(kv_heads * group, kv_heads);
            let call = AttendCall { kv: &kv, layer: LAYER, spans: &spans, q: &q, heads, isa };
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A shard that begins or ends inside the query heads of a KV head computes its heads as one machine does.
    #[test]
    fn heads_of_a_shard_have_the_bits_of_the_whole(
        seed: u64, kv_heads in 1usize..4, group in 1usize..5, rows in 1usize..9, positions in 20usize..600,
        cut in proptest::array::uniform2(any::<prop::sample::Index>()),
    ) {
        let sizes = Sizes { kv_heads, group, head_dim: 16, positions, rows, live_percent: 80 };
        let rows = rows.min(positions);
        let case = Case::new(seed, Sizes { rows, ..sizes }, RowType::F16);
        let (heads, dim) = (case.heads(), sizes.head_dim);
        let [a, b] = cut.map(|cut| cut.index(heads));
        let kept = a.min(b)..a.max(b) + 1;
        let held = kept.start / group..kept.end.div_ceil(group);
        let taken = |x: &[f32]| -> Vec<f32> {
            x.chunks_exact(heads * dim).flat_map(|row| &row[kept.start * dim..kept.end * dim]).copied().collect()
        };
        let shape = KvShape { kv_heads: held.len(), ..case.kv.shape() };
        let mut kv = KvRows::new(shape, case.kv.row_type()).unwrap();
        let mut row = vec![0; case.kv.head_bytes()];
        for layer in 0..shape.layers {
            for slot in (1..shape.slots as u32).map(SlotId) {
                for (at, head) in held.clone().enumerate() {
                    case.kv.read_bits(layer, slot, head, &mut row);
                    kv.write_bits(layer, slot, at, &row);
                }
            }
        }
        let q = taken(&case.q);
        let context = case.live_before(positions - rows);
        let spans = [Span { rows: 0..rows, context: &context, own: &case.slots[positions - rows..] }];
        for isa in Isa::available() {
            let whole = case.attend(2, isa, &[rows]);
            let heads = QueryHeads::shard(&kept, group);
            let call = AttendCall { kv: &kv, layer: LAYER, spans: &spans, q: &q, heads, isa };
            let mut out = vec![0.0; q.len()];
            let threads = Threads::new(NonZeroUsize::new(2).unwrap());
            attend(&threads, &call, &mut out, &mut AttendScratch::default());
            prop_assert_eq!(bits(&out), bits(&taken(&whole)), "{:?} {:?}", isa, kept);
        }
    }
}

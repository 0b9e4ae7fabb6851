//! Votes: who gets them, and that they and the shares below them add up.

use super::reference::{near, shares};
use super::*;

const BITS: u32 = VOTE_BITS;

/// Votes, and the sum of shares in parts of [`ONE`].
fn unpack(score: i64) -> (i64, i64) {
    (score >> BITS, (score & ((1 << BITS) - 1)) << VOTE_SHIFT)
}

/// For how many heads `c` is among the `top` largest: at least, and at most, if shares are known to 1e-4 only.
fn bounds(shares: &[Vec<f64>], c: usize, top: usize) -> (i64, i64) {
    let mut bounds = (0, 0);
    for head in shares {
        // Shares below 1e-30 may have become 0.
        let error = head[c] * 1e-4 + 1e-30;
        let at_least = head.iter().filter(|&&share| share >= head[c] - error).count();
        let above = head.iter().filter(|&&share| share > head[c] + error).count();
        bounds.0 += i64::from(at_least <= top);
        bounds.1 += i64::from(above < top);
    }
    bounds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn votes_go_to_the_largest_shares(
        seed in any::<u64>(), sizes in sizes(), width in widths(), top in 0usize..90,
    ) {
        let case = Case::new(seed, sizes);
        let (shares, _) = shares(&case, width);
        for isa in Isa::available() {
            let (scores, _) = case.score(Aggregate::Vote { top }, width, isa);
            let cast: i64 = scores.iter().map(|&score| unpack(score).0).sum();
            prop_assert_eq!(cast, (shares.len() * top.min(scores.len())) as i64, "{:?}", isa);
            for (c, &score) in scores.iter().enumerate() {
                let (votes, sum) = unpack(score);
                let (least, most) = bounds(&shares, c, top);
                prop_assert!((least..=most).contains(&votes), "{isa:?} {c}: {votes} of {least}..={most}");
                let expected: f64 = shares.iter().map(|head| head[c] * ONE as f64).sum();
                prop_assert!(near(sum, expected, shares.len() << VOTE_SHIFT), "{isa:?} {c}: {sum} {expected}");
            }
        }
    }

    /// A shard owns whole KV heads with their query heads.
    #[test]
    fn shards_add_up_to_the_whole(
        seed in any::<u64>(), sizes in sizes(), width in widths(), aggregate in aggregates(),
    ) {
        let case = Case::new(seed, Sizes { kv_heads: 2, ..sizes });
        let halves = [0, 1].map(|half| shard(&case, half));
        for isa in Isa::available() {
            let (whole, _) = case.score(aggregate, width, isa);
            let [a, b] = [0, 1].map(|half| halves[half].score(aggregate, width, isa).0);
            let both = a.iter().zip(&b);
            let reduced: Vec<i64> = match aggregate {
                Aggregate::Max => both.map(|(a, b)| *a.max(b)).collect(),
                Aggregate::Sum | Aggregate::Vote { .. } => both.map(|(a, b)| a + b).collect(),
            };
            prop_assert_eq!(&whole, &reduced, "{:?}", isa);
        }
    }
}

/// What of `case` belongs to KV head `half`.
fn shard(case: &Case, half: usize) -> Case {
    let Sizes { layers, group, head_dim, .. } = case.sizes;
    let sizes = Sizes { kv_heads: 1, ..case.sizes };
    let mut kv = KvRows::new(KvShape { kv_heads: 1, ..case.kv.shape() }, sizes.row_type).unwrap();
    let mut key = vec![0.0; head_dim];
    for (layer, &slot) in (0..layers).flat_map(|layer| case.keys.iter().map(move |slot| (layer, slot))) {
        case.kv.key(layer, slot, half, &mut key);
        kv.write(layer, &[slot], &key, &key);
    }
    let own = case.queries.chunks_exact(group * head_dim).skip(half).step_by(2).flatten().copied().collect();
    Case {
        sizes,
        rng: StdRng::seed_from_u64(0),
        kv,
        keys: case.keys.clone(),
        queries: own,
        visible: case.visible.clone(),
        candidates: case.candidates.clone(),
        positions: case.positions.clone(),
    }
}

#[test]
fn of_equal_shares_the_later_candidates_get_the_votes() {
    let sizes =
        Sizes { layers: 2, kv_heads: 1, group: 3, head_dim: 8, rows: 2, keys: 300, row_type: RowType::F16 };
    let mut case = Case::new(9, sizes).whole();
    case.queries.fill(0.0);
    for isa in Isa::available() {
        let (scores, _) = case.score(Aggregate::Vote { top: 7 }, 0, isa);
        for (c, &score) in scores.iter().enumerate() {
            assert_eq!(unpack(score).0, if c >= 293 { 6 } else { 0 }, "{isa:?} {c}");
        }
    }
}

#[test]
fn the_most_heads_that_votes_allow_fit() {
    let heads = VOTE_HEADS_END - 1;
    assert_eq!((vote_bits(heads), vote_bits(heads + 1)), (Some(BITS), None));
    let sizes =
        Sizes { layers: 1, kv_heads: 1, group: heads, head_dim: 1, rows: 1, keys: 1, row_type: RowType::F32 };
    let case = Case::new(4, sizes).whole();
    let (scores, _) = case.score(Aggregate::Vote { top: 1 }, 0, Isa::best());
    // One key has all attention of every head.
    assert_eq!(unpack(scores[0]), (heads as i64, heads as i64 * ONE));
}

//! The contract of scores: equal to a naive computation, equal bits whatever the threads, additive over shards, and
//! blind to whatever is not in the list.

use std::num::NonZeroUsize;

use hawser_common::{Position, SlotId};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::kv::{KvShape, RowType};

mod edges;
mod equal;
mod masses;
mod reference;
mod votes;

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    layers: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    rows: usize,
    keys: usize,
    row_type: RowType,
}

impl Sizes {
    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let dims = prop_oneof![8usize..20, Just(32), Just(64), Just(72), Just(80), Just(128), 20usize..129];
    // Some lists end at, before and after a block.
    let keys = prop_oneof![1usize..40, 40usize..600, 250usize..262, 510usize..516];
    // More rows than fit one tile are rare: the naive computation is slow.
    let rows = prop_oneof![4 => 1usize..10, 1 => 40usize..65];
    let row_type = prop_oneof![Just(RowType::F32), Just(RowType::F16), Just(RowType::Bf16)];
    (1usize..3, 1usize..4, 1usize..6, dims, rows, keys, row_type).prop_map(
        |(layers, kv_heads, group, head_dim, rows, keys, row_type)| Sizes {
            layers,
            kv_heads,
            group,
            head_dim,
            rows,
            keys,
            row_type,
        },
    )
}

/// A list of keys with queries, of which some keys are candidates.
struct Case {
    sizes: Sizes,
    rng: StdRng,
    kv: KvRows,
    keys: Vec<SlotId>,
    /// `[L][R][Hq][D]`
    queries: Vec<f32>,
    visible: Vec<usize>,
    candidates: Vec<u32>,
    /// Of the candidates.
    positions: Vec<Position>,
}

impl Case {
    fn new(seed: u64, sizes: Sizes) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let Sizes { layers, kv_heads, head_dim, .. } = sizes;
        let total = sizes.keys + 9;
        let mut keys: Vec<SlotId> = (1..total as u32).map(SlotId).collect();
        keys.shuffle(&mut rng);
        let shape = KvShape { layers, slots: total, kv_heads, head_dim };
        let mut kv = KvRows::new(shape, sizes.row_type).unwrap();
        for layer in 0..layers {
            let rows = numbers(&mut rng, keys.len() * kv_heads * head_dim, 3.0);
            kv.write(layer, &keys, &rows, &rows);
        }
        keys.truncate(sizes.keys);
        let queries = numbers(&mut rng, layers * sizes.rows * sizes.heads() * head_dim, 2.0);
        let visible = (0..sizes.rows).map(|_| rng.random_range(0..=sizes.keys)).collect();
        let percent = [100, 90, 40][rng.random_range(0..3)];
        let candidates: Vec<u32> =
            (0..sizes.keys as u32).filter(|_| rng.random_range(0..100) < percent).collect();
        // Positions ascend with gaps, as after an earlier decision.
        let mut position = 0;
        let positions = (0..sizes.keys).map(|_| {
            position += if rng.random_range(0..10) < 7 { 1 } else { rng.random_range(1..6) };
            Position(position)
        });
        let all: Vec<Position> = positions.collect();
        let positions = candidates.iter().map(|&key| all[key as usize]).collect();
        Self { sizes, rng, kv, keys, queries, visible, candidates, positions }
    }

    /// All keys are candidates, and every row sees all of them.
    fn whole(mut self) -> Self {
        self.visible.fill(self.sizes.keys);
        self.candidates = (0..self.sizes.keys as u32).collect();
        self.positions = self.candidates.iter().map(|&key| Position(key)).collect();
        self
    }

    fn call(&self, aggregate: Aggregate, width: usize, isa: Isa) -> ScoreCall<'_> {
        ScoreCall {
            kv: &self.kv,
            keys: &self.keys,
            queries: &self.queries,
            visible: &self.visible,
            heads: QueryHeads::whole(self.sizes.heads(), self.sizes.kv_heads),
            candidates: &self.candidates,
            pool: (width > 0).then_some(Pool { width, positions: &self.positions }),
            aggregate,
            isa,
        }
    }

    /// Scores without a pool if `width` is 0.
    fn score(&self, aggregate: Aggregate, width: usize, isa: Isa) -> (Vec<i64>, Scored) {
        scored(&self.call(aggregate, width, isa), 2, &mut ScoreScratch::default())
    }
}

fn scored(call: &ScoreCall<'_>, threads: usize, scratch: &mut ScoreScratch) -> (Vec<i64>, Scored) {
    // What was there before must not matter.
    let mut out = vec![-7; call.candidates.len()];
    let scored = score(&pool_of(threads), call, &mut out, scratch);
    (out, scored)
}

fn pool_of(threads: usize) -> Threads {
    Threads::new(NonZeroUsize::new(threads).unwrap())
}

fn numbers(rng: &mut StdRng, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| (rng.random::<f32>() - 0.5) * 2.0 * scale).collect()
}

/// Zero, or an odd width.
fn widths() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), Just(3), Just(5), Just(7), Just(31)]
}

fn aggregates() -> impl Strategy<Value = Aggregate> {
    prop_oneof![
        Just(Aggregate::Sum),
        Just(Aggregate::Max),
        (0usize..80).prop_map(|top| Aggregate::Vote { top })
    ]
}

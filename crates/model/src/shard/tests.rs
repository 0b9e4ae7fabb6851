//! Plans for any model, any number of ranks and any blocks: nothing is lost, nothing is held twice that need not be.

use proptest::prelude::*;

use super::*;
use crate::config::{Architecture, RopeConfig, RopeScaling};

fn config([heads, kv_heads, head_dim]: [usize; 3], ffn: usize, vocab: usize) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        hidden: 64,
        ffn,
        layers: 2,
        heads,
        kv_heads,
        head_dim,
        vocab,
        rope: RopeConfig { theta: 1e4, scaling: RopeScaling::None },
        rms_eps: 1e-5,
        tied: true,
        context_length: 128,
    }
}

fn blocks(output: usize, down: usize) -> Blocks {
    let block = |tensor: &str, items| Block { tensor: tensor.to_owned(), items };
    Blocks { output: block("o", output), down: block("down", down) }
}

fn plan(config: &ModelConfig, world: usize, blocks: &Blocks) -> Result<ShardPlan, ShardError> {
    ShardPlan::new(config, NonZeroUsize::new(world).unwrap(), blocks)
}

fn shards(plan: &ShardPlan) -> Vec<&Shard> {
    (0..plan.world()).map(|rank| plan.rank(rank).unwrap()).collect()
}

/// Sizes of a model whose matrices are whole blocks.
fn cases() -> impl Strategy<Value = (ModelConfig, Blocks)> {
    let block = || prop_oneof![3 => Just(1usize), 2 => Just(32), 1 => Just(256)];
    let dim = prop_oneof![Just(8usize), Just(16), Just(24), Just(64), Just(80), Just(128)];
    (1usize..9, 1usize..10, dim, block(), block(), 1usize..80, 30usize..500).prop_filter_map(
        "whole blocks",
        |(kv_heads, group, head_dim, output, down, ffn, vocab)| {
            let heads = kv_heads * group;
            let whole = (heads * head_dim).is_multiple_of(output);
            whole.then(|| (config([heads, kv_heads, head_dim], ffn * down, vocab), blocks(output, down)))
        },
    )
}

fn covers(parts: &[Range<usize>], all: usize) -> bool {
    parts[0].start == 0
        && parts[parts.len() - 1].end == all
        && parts.windows(2).all(|pair| pair[0].end == pair[1].start)
        && parts.iter().all(|part| !part.is_empty())
}

proptest! {
    #[test]
    fn every_part_of_a_model_is_one_ranks((config, blocks) in cases(), world in 1usize..12) {
        let unit = blocks.output.heads(config.head_dim);
        let fits = config.heads / unit >= world && config.ffn / blocks.down.items >= world;
        let plan = plan(&config, world, &blocks);
        prop_assert_eq!(plan.is_ok(), fits, "{:?}", plan);
        let Ok(plan) = plan else { return Ok(()) };
        let shards = shards(&plan);
        let parts = |part: fn(&Shard) -> &Range<usize>| -> Vec<Range<usize>> {
            shards.iter().map(|shard| part(shard).clone()).collect()
        };
        prop_assert!(covers(&parts(|shard| &shard.heads.query), config.heads));
        prop_assert!(covers(&parts(|shard| &shard.ffn), config.ffn));
        prop_assert!(covers(&parts(|shard| &shard.vocab), config.vocab));
        let group = config.heads / config.kv_heads;
        for (rank, shard) in shards.iter().enumerate() {
            prop_assert_eq!((shard.rank, shard.world), (rank, world));
            prop_assert_eq!(shard.vocab_counts[rank], shard.vocab.len());
            prop_assert!((shard.heads.query.start * config.head_dim).is_multiple_of(blocks.output.items));
            prop_assert!(shard.ffn.start.is_multiple_of(blocks.down.items));
            // Each query head reads, among those held here, the KV head that it reads in the whole model.
            let readers = shard.heads.readers();
            prop_assert_eq!(readers.kv_heads(), shard.heads.kv.len());
            for (held, kv_head) in shard.heads.kv.clone().enumerate() {
                for local in readers.readers(held) {
                    prop_assert_eq!((shard.heads.query.start + local) / group, kv_head);
                }
            }
        }
        // The leader's parts are the largest, and no part is larger than the next by more than what cannot be cut.
        let sizes: Vec<usize> = shards.iter().map(|shard| shard.ffn.len()).collect();
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[world - 1] <= blocks.down.items);
    }

    /// Without blocks no rank holds more KV heads than some rank must, and none more query heads than whole KV heads
    /// have.
    #[test]
    fn no_rank_has_more_heads_than_it_must(kv_heads in 1usize..9, group in 1usize..9, world in 1usize..20) {
        let Some(plan) = HeadPlan::new([kv_heads * group, kv_heads], world, 1) else {
            prop_assert!(world > kv_heads * group);
            return Ok(());
        };
        let most = kv_heads.div_ceil(world);
        for rank in plan.ranks() {
            prop_assert!(rank.kv.len() <= most && rank.query.len() <= most * group, "{:?}", rank);
        }
    }
}

#[test]
fn heads_are_shared_out_evenly_or_by_whole_kv_heads() {
    let parts = |heads, world, unit| -> Vec<(Range<usize>, Range<usize>)> {
        let plan = HeadPlan::new(heads, world, unit).unwrap();
        plan.ranks().iter().map(|rank| (rank.query.clone(), rank.kv.clone())).collect()
    };
    // Some rank must hold two KV heads; both do, for almost as many query heads each.
    assert_eq!(parts([9, 3], 2, 1), [(0..5, 0..2), (5..9, 1..3)]);
    assert_eq!(parts([9, 3], 3, 1), [(0..3, 0..1), (3..6, 1..2), (6..9, 2..3)]);
    assert_eq!(parts([9, 3], 4, 1), [(0..2, 0..1), (2..3, 0..1), (3..6, 1..2), (6..9, 2..3)]);
    // Evenly, the second rank would hold both KV heads, and none must.
    assert_eq!(parts([14, 2], 3, 1), [(0..4, 0..1), (4..7, 0..1), (7..14, 1..2)]);
    // Heads of 16 in blocks of 32: cuts move to every second head.
    assert_eq!(parts([12, 4], 2, 2), [(0..6, 0..2), (6..12, 2..4)]);
    assert_eq!(parts([12, 4], 3, 2), [(0..4, 0..2), (4..8, 1..3), (8..12, 2..4)]);
}

#[test]
fn a_group_that_would_leave_a_rank_empty_is_refused_by_name() {
    let plain = blocks(1, 1);
    let refused = |config: &ModelConfig, world, blocks: &Blocks| plan(config, world, blocks).unwrap_err();
    let llama = config([9, 3, 8], 192, 384);
    assert_eq!(refused(&llama, 10, &plain), ShardError::Heads { world: 10, heads: 9 });
    // All 8 heads of 32 are one block of 256.
    let wide = config([8, 2, 32], 512, 384);
    let uncut = |tensor: &str, parts, world| ShardError::Uncut {
        tensor: tensor.to_owned(),
        parts,
        items: 256,
        world,
    };
    assert_eq!(refused(&wide, 2, &blocks(256, 1)), uncut("o", 1, 2));
    assert_eq!(refused(&wide, 3, &blocks(1, 256)), uncut("down", 2, 3));
    assert_eq!(
        refused(&config([8, 2, 32], 512, 3), 4, &plain),
        ShardError::Vocabulary { world: 4, vocab: 3 }
    );
}

#[test]
fn a_group_of_one_holds_the_whole_model() {
    let config = config([9, 3, 64], 1536, 384);
    let plan = plan(&config, 1, &blocks(32, 32)).unwrap();
    assert_eq!(plan.rank(0), Some(&Shard::whole(&config)));
    assert_eq!(plan.rank(1), None);
}

//! How the ranks of a group share one model, and what they exchange.
//!
//! Owns the plan: which heads, which part of the feed-forward and which rows of the vocabulary each rank holds.
//! Promises that every query head, every inner column and every token is one rank's alone, that no rank is empty, and
//! that cuts lie between the blocks of quantised matrices, so that no weight is ever changed. The plan is a function
//! of its arguments: ranks that make it apart make the same. Never reads a weight.

mod blocks;
mod error;
mod group;
mod heads;

use std::num::NonZeroUsize;
use std::ops::Range;

pub use blocks::{Block, Blocks};
pub use error::ShardError;
pub(crate) use group::Group;
pub use heads::{HeadPlan, HeadShard};

use crate::config::ModelConfig;

/// What every rank of a group holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    ranks: Vec<Shard>,
}

/// What one rank holds of a model. Ranges are of the whole model's indexes; none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rank 0 leads.
    pub rank: usize,
    /// Ranks in the group.
    pub world: usize,
    pub heads: HeadShard,
    /// Rows of gate and up, columns of down.
    pub ffn: Range<usize>,
    /// Rows of the embedding and of the head.
    pub vocab: Range<usize>,
    /// Rows of the vocabulary that each rank holds, in the order of the ranks.
    pub vocab_counts: Vec<usize>,
}

impl ShardPlan {
    /// Shares a model out, as equally as cuts allow; of what is left over the first ranks get one more.
    ///
    /// # Errors
    /// [`ShardError`] where some rank would be empty.
    pub fn new(config: &ModelConfig, world: NonZeroUsize, blocks: &Blocks) -> Result<Self, ShardError> {
        let world = world.get();
        if world > config.heads {
            return Err(ShardError::Heads { world, heads: config.heads });
        }
        let unit = blocks.output.heads(config.head_dim);
        let uncut = |block: &Block, parts| {
            let (tensor, items) = (block.tensor.clone(), block.items);
            ShardError::Uncut { tensor, parts, items, world }
        };
        let heads = HeadPlan::new([config.heads, config.kv_heads], world, unit);
        let heads = heads.ok_or_else(|| uncut(&blocks.output, config.heads / unit))?;
        let ffn_parts = config.ffn / blocks.down.items;
        if ffn_parts < world {
            return Err(uncut(&blocks.down, ffn_parts));
        }
        if config.vocab < world {
            return Err(ShardError::Vocabulary { world, vocab: config.vocab });
        }
        let ffn = |rank| scaled(share(ffn_parts, world, rank), blocks.down.items);
        let vocab = |rank| share(config.vocab, world, rank);
        let vocab_counts: Vec<usize> = (0..world).map(|rank| vocab(rank).len()).collect();
        let ranks = heads.into_ranks().into_iter().enumerate().map(|(rank, heads)| Shard {
            rank,
            world,
            heads,
            ffn: ffn(rank),
            vocab: vocab(rank),
            vocab_counts: vocab_counts.clone(),
        });
        Ok(Self { ranks: ranks.collect() })
    }

    #[must_use]
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// What `rank` holds; `None` beyond the group.
    #[must_use]
    pub fn rank(&self, rank: usize) -> Option<&Shard> {
        self.ranks.get(rank)
    }
}

impl Shard {
    /// All of a model: the shard of a group of one.
    #[must_use]
    pub fn whole(config: &ModelConfig) -> Self {
        Self {
            rank: 0,
            world: 1,
            heads: HeadShard::new(0..config.heads, config.heads / config.kv_heads),
            ffn: 0..config.ffn,
            vocab: 0..config.vocab,
            vocab_counts: vec![config.vocab],
        }
    }
}

/// The part of `count` things that the `index`-th of `parts` gets: neighbours, as equal as can be, the first parts one
/// more.
fn share(count: usize, parts: usize, index: usize) -> Range<usize> {
    let start = |index: usize| index * (count / parts) + index.min(count % parts);
    start(index)..start(index + 1)
}

fn scaled(range: Range<usize>, unit: usize) -> Range<usize> {
    range.start * unit..range.end * unit
}

const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

const fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}

#[cfg(test)]
mod tests;

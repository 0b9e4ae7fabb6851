//! Which heads each rank holds.

use std::ops::Range;

use hawser_device::query_heads::QueryHeads;

use super::{lcm, scaled, share};

/// The heads of every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadPlan {
    ranks: Vec<HeadShard>,
}

/// Query heads of one rank, and the KV heads that they read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadShard {
    /// Of the whole model.
    pub query: Range<usize>,
    /// Of the whole model, each once. Neighbouring ranks may hold the same one.
    pub kv: Range<usize>,
    /// Query heads that read one KV head in the whole model.
    model_group: usize,
}

impl HeadPlan {
    /// Shares `heads` query heads and `kv_heads` KV heads out, in cuts of `unit` query heads. `None`: some rank would
    /// be empty.
    ///
    /// Every rank gets as many query heads as the others, or one unit fewer, where no rank holds more KV heads for that
    /// than some rank must: the rank with most to do is the one that all wait for. Else ranks get whole KV heads where
    /// there are enough of them; else each KV head gets some ranks, which share its query heads. Only where blocks are
    /// so wide that neither can be, ranks reach from one KV head into the next.
    #[must_use]
    pub fn new([heads, kv_heads]: [usize; 2], world: usize, unit: usize) -> Option<Self> {
        let group = heads / kv_heads;
        if world == 0 || heads % unit > 0 || heads / unit < world {
            return None;
        }
        let shards = |cut: Vec<Range<usize>>| -> Vec<HeadShard> {
            cut.into_iter().map(|query| HeadShard::new(query, group)).collect()
        };
        let even = shards((0..world).map(|rank| scaled(share(heads / unit, world, rank), unit)).collect());
        if even.iter().all(|rank| rank.kv.len() <= kv_heads.div_ceil(world)) {
            return Some(Self { ranks: even });
        }
        let whole = lcm(group, unit);
        let ranks = if heads / whole >= world {
            shards((0..world).map(|rank| scaled(share(heads / whole, world, rank), whole)).collect())
        } else if group % unit == 0 {
            let within = |kv_head: usize| {
                let ranks = share(world, kv_heads, kv_head).len();
                let part = move |rank| scaled(share(group / unit, ranks, rank), unit);
                (0..ranks).map(part).map(move |part| kv_head * group + part.start..kv_head * group + part.end)
            };
            shards((0..kv_heads).flat_map(within).collect())
        } else {
            even
        };
        Some(Self { ranks })
    }

    /// In the order of the ranks.
    #[must_use]
    pub fn ranks(&self) -> &[HeadShard] {
        &self.ranks
    }

    pub(super) fn into_ranks(self) -> Vec<HeadShard> {
        self.ranks
    }
}

impl HeadShard {
    /// The shard with the query heads `query` of a model in which `model_group` of them read one KV head.
    pub(super) fn new(query: Range<usize>, model_group: usize) -> Self {
        let kv = query.start / model_group..query.end.div_ceil(model_group);
        Self { query, kv, model_group }
    }

    /// Which of the query heads here read which of the KV heads here.
    #[must_use]
    pub fn readers(&self) -> QueryHeads {
        QueryHeads::shard(&self.query, self.model_group)
    }
}

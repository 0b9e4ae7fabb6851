//! Which heads each rank holds.

use std::ops::Range;

use super::{gcd, lcm, scaled, share};

/// The heads of every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadPlan {
    ranks: Vec<HeadShard>,
}

/// Query heads of one rank, and the KV heads that they read.
///
/// A rank holds its KV heads as kernels want them: each is read by as many of the rank's query heads. Where a rank's
/// range begins or ends inside the query heads of a KV head and reaches into those of another, that is so only because
/// the KV head is held several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadShard {
    /// Of the whole model.
    pub query: Range<usize>,
    /// Of the whole model, each once. Neighbouring ranks may hold the same one.
    pub kv: Range<usize>,
    /// Query heads that read one KV head as it is held here.
    pub group: usize,
    /// Query heads that read one KV head in the whole model.
    model_group: usize,
}

impl HeadPlan {
    /// Shares `heads` query heads and `kv_heads` KV heads out, in cuts of `unit` query heads. `None`: some rank would
    /// be empty.
    ///
    /// Ranks get whole KV heads where there are enough of them. Else each KV head gets some ranks, which share its
    /// query heads. Only where blocks are so wide that neither can be, ranks reach from one KV head into the next.
    #[must_use]
    pub fn new([heads, kv_heads]: [usize; 2], world: usize, unit: usize) -> Option<Self> {
        let group = heads / kv_heads;
        if world == 0 || heads % unit > 0 || heads / unit < world {
            return None;
        }
        let whole = lcm(group, unit);
        let cut: Vec<Range<usize>> = if heads / whole >= world {
            (0..world).map(|rank| scaled(share(heads / whole, world, rank), whole)).collect()
        } else if group % unit == 0 {
            let within = |kv_head: usize| {
                let ranks = share(world, kv_heads, kv_head).len();
                let part = move |rank| scaled(share(group / unit, ranks, rank), unit);
                (0..ranks).map(part).map(move |part| kv_head * group + part.start..kv_head * group + part.end)
            };
            (0..kv_heads).flat_map(within).collect()
        } else {
            (0..world).map(|rank| scaled(share(heads / unit, world, rank), unit)).collect()
        };
        Some(Self { ranks: cut.into_iter().map(|query| HeadShard::new(query, group)).collect() })
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
        let first = query.end.min((kv.start + 1) * model_group) - query.start;
        let last = query.end - query.start.max((kv.end - 1) * model_group);
        // All KV heads between the first and the last are whole.
        let between = if kv.len() > 2 { model_group } else { 0 };
        let group = gcd(gcd(first, last), between);
        Self { query, kv, group, model_group }
    }

    /// KV heads as they are held here.
    #[must_use]
    pub fn held(&self) -> usize {
        self.query.len() / self.group
    }

    /// Which KV head of the model each of those is.
    pub fn held_kv(&self) -> impl Iterator<Item = usize> {
        self.query.clone().step_by(self.group).map(|query| query / self.model_group)
    }
}

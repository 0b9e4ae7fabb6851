//! How much attention queries pay to keys: the scores by which retention decides what a session keeps.
//!
//! Promises that a score depends, bit for bit, on the queries, the keys and the instruction set only. A softmax adds
//! the weights of a block of [`BLOCK`](crate::attention::BLOCK) keys in f32 and blocks in f64, in order; rows are
//! added in order; and what layers and heads contribute is added as integers. So neither the number of threads nor
//! the cut of the work matters, and shards that own whole query heads add their vectors up to that of one machine.
//! A key that is not in the list is never read, whatever it holds. Reads no value rows, decides nothing about what is
//! kept, and never allocates once its scratch has grown to the largest call.

use std::sync::atomic::{AtomicUsize, Ordering};

use hawser_common::{Position, SlotId};

use crate::cpu::Isa;
use crate::kv::KvRows;
use crate::query_heads::QueryHeads;
use crate::threads::{SharedMut, Threads};

mod heads;
mod mass;
mod parts;
mod scratch;
mod shares;
mod work;

pub use mass::{MASS_ONE, MassCall, mass};
pub use scratch::ScoreScratch;

/// The integer that stands for a share of 1: all attention of a query head.
pub const ONE: i64 = 1 << 40;

/// Query heads of all layers, from which on votes are not counted: votes and shares would not fit one integer.
const VOTE_HEADS_END: usize = 1 << 14;
/// Bits of a packed score below its votes.
const VOTE_BITS: u32 = 49;
/// Bits of a share that a packed score leaves out, so that the shares of all heads stay below the votes.
const VOTE_SHIFT: u32 = 5;

/// Where the votes begin in a score of [`Aggregate::Vote`]: `score >> bits` of them. `None`: a model with so many
/// query heads, `layers * heads`, has no such scores.
///
/// The place is the same for all models, so that the scores of shards, which have fewer heads, add up: fewer than 2^14
/// votes above 49 bits, and below them as many shares of at most 2^35.
#[must_use]
pub const fn vote_bits(heads: usize) -> Option<u32> {
    if heads < VOTE_HEADS_END { Some(VOTE_BITS) } else { None }
}

/// How the shares of all layers and query heads become one score. A share is an integer of [`ONE`] parts, rounded to
/// the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// Their sum. Shards add their scores.
    Sum,
    /// The largest. Shards take the larger of their scores.
    Max,
    /// How many layers and heads have the candidate among their `top` largest shares (of equal ones the later
    /// candidates), then, below [`vote_bits`], the sum of the shares without their last bits. Shards add their scores.
    Vote { top: usize },
}

/// A mean over logical neighbours. A share becomes the sum of the shares of those candidates whose position is at
/// most `width / 2` away, divided by `width`: positions that are no candidates count as 0.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// Odd.
    pub width: usize,
    /// Of the candidates, ascending.
    pub positions: &'a [Position],
}

/// Scores of candidates by the attention that queries pay to them in every layer.
#[derive(Clone, Copy, Debug)]
pub struct ScoreCall<'a> {
    /// The rows of every slot in `keys` must have been written.
    pub kv: &'a KvRows,
    /// Over which a softmax is taken, in position order.
    pub keys: &'a [SlotId],
    /// Queries after RoPE, or vectors of an intent memory: `[L][R][Hq][D]`.
    pub queries: &'a [f32],
    /// One number per row, R in all: the row sees the first so many keys.
    pub visible: &'a [usize],
    /// Hq of them, and who reads which KV head.
    pub heads: QueryHeads,
    /// Indexes into `keys` of what gets a score, ascending.
    pub candidates: &'a [u32],
    pub pool: Option<Pool<'a>>,
    pub aggregate: Aggregate,
    pub isa: Isa,
}

/// What a call saw beside its scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    /// Shares that were no finite number and counted as 0.
    pub non_finite: u64,
}

impl ScoreCall<'_> {
    fn check(&self, out: &[i64]) {
        let shape = self.kv.shape();
        let (rows, keys) = (self.visible.len(), self.keys.len());
        assert_eq!(self.heads.kv_heads(), shape.kv_heads, "KV heads of {:?}", self.heads);
        assert_eq!(
            self.queries.len(),
            shape.layers * rows * self.heads.count() * shape.head_dim,
            "{rows} rows"
        );
        assert!(self.visible.iter().all(|&visible| visible <= keys), "no row sees more than {keys} keys");
        assert_eq!(out.len(), self.candidates.len(), "one score per candidate");
        assert!(self.candidates.is_sorted_by(|a, b| a < b), "candidates ascend");
        assert!(self.candidates.last().is_none_or(|&last| (last as usize) < keys), "candidates are keys");
        if let Some(pool) = self.pool {
            assert!(pool.width % 2 == 1, "a window of {} has no middle", pool.width);
            assert_eq!(pool.positions.len(), self.candidates.len(), "one position per candidate");
            assert!(pool.positions.is_sorted_by(|a, b| a < b), "positions ascend");
        }
        if matches!(self.aggregate, Aggregate::Vote { .. }) {
            assert!(
                vote_bits(shape.layers * self.heads.count()).is_some(),
                "too many heads to count their votes"
            );
        }
    }
}

/// Writes the score of each candidate to `out`.
///
/// The share of key `j` in layer `l` and query head `h` is the mean over rows of softmax(q·K / sqrt(D)) over the keys
/// that a row sees; of the others it is 0. Shares of candidates are pooled, if asked for, and then aggregated over `l`
/// and `h`. A share that is not finite, which a query or a key that is not finite makes of all shares of its rows,
/// counts as 0.
///
/// # Panics
/// If shapes do not fit, an order is wrong, or `keys` names the dead slot or one out of range: bugs of the caller.
pub fn score(threads: &Threads, call: &ScoreCall<'_>, out: &mut [i64], scratch: &mut ScoreScratch) -> Scored {
    call.check(out);
    scratch.prepare(call, threads.count());
    let ScoreScratch { keys, size, windows, workspaces, .. } = scratch;
    let workspaces = &mut workspaces[..threads.count()];
    let units = Units::new(call.kv.shape().layers * call.kv.shape().kv_heads);
    let job =
        work::Job { call, keys, size: *size, windows, units: &units, workspaces: SharedMut::new(workspaces) };
    threads.run(&|thread| job.run(thread));
    out.fill(0);
    let mut scored = Scored::default();
    for workspace in &*workspaces {
        scored.non_finite += workspace.heads.non_finite();
        for (out, &score) in out.iter_mut().zip(workspace.heads.scores()) {
            *out = match call.aggregate {
                Aggregate::Sum | Aggregate::Vote { .. } => *out + score,
                Aggregate::Max => score.max(*out),
            };
        }
    }
    scored
}

/// Units of work that threads claim one by one, so that they end together.
struct Units {
    count: usize,
    claimed: AtomicUsize,
}

impl Units {
    fn new(count: usize) -> Self {
        Self { count, claimed: AtomicUsize::new(0) }
    }

    /// The next unit that nobody works on.
    fn claim(&self) -> Option<usize> {
        let unit = self.claimed.fetch_add(1, Ordering::Relaxed);
        (unit < self.count).then_some(unit)
    }
}

#[cfg(test)]
mod tests;

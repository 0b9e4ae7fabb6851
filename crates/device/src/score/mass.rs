//! How much attention the rows of a step pay to each key of one layer, for policies that add it up as they go.
//!
//! What one row pays to one key through one query head is rounded to an integer of [`MASS_ONE`] parts. Sums of integers
//! do not depend on their order: shards that own whole query heads add up to one machine, bit for bit.

use hawser_common::SlotId;

use super::heads::integer;
use super::scratch::Workspace;
use super::shares::{AddShares, Keys, Queries, RoomSize, Target};
use super::{ScoreScratch, Scored, Units};
use crate::attention::{Offsets, Rows};
use crate::cpu::Isa;
use crate::kv::{Bf16, F16, F32, KvRows, Layer, RowFormat};
use crate::query_heads::QueryHeads;
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::{SharedMut, Threads};

/// The integer that stands for all attention of one row and query head.
///
/// A sum has room for 2^33 of them: in a model of 2^14 query heads in all layers, half a million rows that look at
/// nothing but one key. Whoever keeps sums adds them with saturation, so that a longer session ranks its largest keys
/// alike and nothing worse. A key that gets less than 2^-31 of a row gets nothing of it.
pub const MASS_ONE: i64 = 1 << 30;

/// Rows of a unit of work at least, and the most units of one KV head.
const LEAST_ROWS: usize = 32;
const MOST_CHUNKS: usize = 8;

/// One layer's attention of one span: rows that follow each other in one sequence.
#[derive(Clone, Copy, Debug)]
pub struct MassCall<'a> {
    /// The rows of every slot named here must have been written.
    pub kv: &'a KvRows,
    pub layer: usize,
    /// Live slots before the first row, in position order.
    pub context: &'a [SlotId],
    /// The rows' own slots, one each: row `i` also sees `own[..=i]`.
    pub own: &'a [SlotId],
    /// Queries after RoPE: `[rows][Hq][D]`.
    pub q: &'a [f32],
    /// Hq of them, and who reads which KV head.
    pub heads: QueryHeads,
    pub isa: Isa,
}

impl MassCall<'_> {
    fn check(&self, out: &[i64]) {
        let shape = self.kv.shape();
        assert!(self.layer < shape.layers, "layer {} of {}", self.layer, shape.layers);
        assert_eq!(self.heads.kv_heads(), shape.kv_heads, "KV heads of {:?}", self.heads);
        assert_eq!(
            self.q.len(),
            self.own.len() * self.heads.count() * shape.head_dim,
            "one query row per own slot"
        );
        assert_eq!(out.len(), self.context.len() + self.own.len(), "one number per live slot");
    }

    /// Rows of a unit, and units of one KV head.
    fn cut(&self) -> (usize, usize) {
        let rows = self.own.len();
        let chunk = rows.div_ceil(MOST_CHUNKS).max(LEAST_ROWS).min(rows.max(1));
        (chunk, rows.div_ceil(chunk))
    }
}

/// Adds to each number of `out`, of the live slots in position order (`context`, then `own`), the softmax weights that
/// all rows and query heads give it, in parts of [`MASS_ONE`]. A row that has no finite softmax in a query head adds
/// nothing there, so that one bad row does not spoil a sum that lasts; the keys that it sees are counted.
///
/// # Panics
/// If shapes do not fit, or a list names the dead slot or one out of range: bugs of the caller.
pub fn mass(threads: &Threads, call: &MassCall<'_>, out: &mut [i64], scratch: &mut ScoreScratch) -> Scored {
    call.check(out);
    let (chunk, chunks) = call.cut();
    let units = Units::new(chunks * call.kv.shape().kv_heads);
    scratch.prepare_mass(call, chunk, threads.count());
    let ScoreScratch { keys, size, visible, workspaces, .. } = scratch;
    let workspaces = &mut workspaces[..threads.count()];
    let job = Job { call, keys, size: *size, visible, units: &units, workspaces: SharedMut::new(workspaces) };
    threads.run(&|thread| job.run(thread));
    let mut scored = Scored::default();
    for workspace in &*workspaces {
        scored.non_finite += workspace.mass.non_finite;
        out.iter_mut().zip(&workspace.mass.sums).for_each(|(out, sum)| *out = out.saturating_add(*sum));
    }
    scored
}

/// What one thread has added up.
#[derive(Debug, Default)]
pub(super) struct Mass {
    /// One per key.
    sums: Vec<i64>,
    non_finite: u64,
}

impl Mass {
    /// Begins a call. Allocates only what no call before it has needed.
    pub(super) fn reset(&mut self, keys: usize) {
        self.non_finite = 0;
        self.sums.clear();
        self.sums.resize(keys, 0);
    }
}

impl Target for Mass {
    /// All heads add to the same numbers. They cannot overflow: a call has fewer than 2^33 rows and heads.
    #[inline(always)]
    fn add<S: Simd>(&mut self, _: S, _: usize, keys: Keys, (weights, factor): (&[f32], f32)) {
        if !factor.is_finite() {
            self.non_finite += keys.seen as u64;
            return;
        }
        let sums = &mut self.sums[keys.start..][..keys.seen];
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += integer(weight * factor, MASS_ONE);
        }
    }
}

/// A call, shared by all threads.
struct Job<'a> {
    call: &'a MassCall<'a>,
    keys: &'a Offsets,
    size: RoomSize,
    /// Keys that each row sees.
    visible: &'a [usize],
    /// Chunks of rows, each with every KV head.
    units: &'a Units,
    workspaces: SharedMut<'a, Workspace>,
}

impl Job<'_> {
    fn run(&self, thread: usize) {
        // SAFETY: each thread takes its own workspace.
        let workspace = unsafe { &mut self.workspaces.slice(thread..thread + 1)[0] };
        dispatch(self.call.isa, Work { job: self, workspace });
    }
}

struct Work<'a> {
    job: &'a Job<'a>,
    workspace: &'a mut Workspace,
}

impl Kernel for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Work { job, workspace } = self;
        while let Some(unit) = job.units.claim() {
            match job.call.kv.layer(job.call.layer) {
                Layer::F32(rows) => add_unit::<S, F32>(s, job, rows, unit, workspace),
                Layer::F16(rows) => add_unit::<S, F16>(s, job, rows, unit, workspace),
                Layer::Bf16(rows) => add_unit::<S, Bf16>(s, job, rows, unit, workspace),
            }
        }
    }
}

/// What some rows give to each key through the query heads of one KV head.
#[inline(always)]
fn add_unit<S: Simd, F: RowFormat>(
    s: S,
    job: &Job<'_>,
    rows: &[F::Item],
    unit: usize,
    workspace: &mut Workspace,
) {
    let MassCall { kv, q, heads, .. } = *job.call;
    let shape = kv.shape();
    let (chunk, kv_head) = (unit / shape.kv_heads, unit % shape.kv_heads);
    let readers = heads.readers(kv_head);
    let first = chunk * job.size.rows;
    let row = heads.count() * shape.head_dim;
    let queries = Queries {
        q: &q[first * row + readers.start * shape.head_dim..],
        stride: row,
        group: readers.len(),
        head_dim: shape.head_dim,
        visible: &job.visible[first..job.visible.len().min(first + job.size.rows)],
        whole: 1.0,
    };
    let keys = Rows::<F> {
        // Every slot was checked, so that every offset lies a head's key and value before the end of the layer.
        base: rows[kv_head * shape.head_stride()..].as_ptr(),
        at: job.keys.padded(),
        dim: shape.padded_dim(),
    };
    let Workspace { room, mass, .. } = workspace;
    s.call(AddShares { queries, keys, size: job.size, room, to: mass });
}

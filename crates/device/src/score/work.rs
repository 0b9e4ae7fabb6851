//! What one thread does: claims pairs of a layer and a KV head, and adds what their query heads give.

use super::heads::{AddHead, Window};
use super::scratch::{Workspace, padded};
use super::shares::{AddShares, Queries, RoomSize, Shares};
use super::{ScoreCall, Units};
use crate::attention::{Offsets, Rows};
use crate::kv::{Bf16, F16, F32, Layer, RowFormat};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::SharedMut;

/// A call, shared by all threads.
pub(super) struct Job<'a> {
    pub(super) call: &'a ScoreCall<'a>,
    pub(super) keys: &'a Offsets,
    pub(super) size: RoomSize,
    pub(super) windows: &'a [Window],
    /// Pairs of a layer and a KV head.
    pub(super) units: &'a Units,
    pub(super) workspaces: SharedMut<'a, Workspace>,
}

impl Job<'_> {
    pub(super) fn run(&self, thread: usize) {
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
        let kv_heads = job.call.kv.shape().kv_heads;
        while let Some(unit) = job.units.claim() {
            // KV heads of one layer follow each other: their rows are neighbours in memory.
            let unit = (unit / kv_heads, unit % kv_heads);
            match job.call.kv.layer(unit.0) {
                Layer::F32(rows) => shares::<S, F32>(s, job, rows, unit, workspace),
                Layer::F16(rows) => shares::<S, F16>(s, job, rows, unit, workspace),
                Layer::Bf16(rows) => shares::<S, Bf16>(s, job, rows, unit, workspace),
            }
            add_heads(s, job, unit.1, workspace);
        }
    }
}

/// The shares of all query heads of one KV head.
#[inline(always)]
fn shares<S: Simd, F: RowFormat>(
    s: S,
    job: &Job<'_>,
    rows: &[F::Item],
    (layer, kv_head): (usize, usize),
    workspace: &mut Workspace,
) {
    let ScoreCall { kv, keys, queries, visible, heads, .. } = *job.call;
    let (shape, readers) = (kv.shape(), heads.readers(kv_head));
    let (row, stride) = (heads.count() * shape.head_dim, padded(keys.len()));
    let sums = &mut workspace.shares.floats_mut()[..readers.len() * stride];
    sums.fill(0.0);
    let first = layer * visible.len() * row + readers.start * shape.head_dim;
    let queries = Queries {
        q: queries.get(first..).unwrap_or(&[]),
        stride: row,
        group: readers.len(),
        head_dim: shape.head_dim,
        visible,
        whole: 1.0 / visible.len() as f64,
    };
    let keys = Rows::<F> {
        // Every slot was checked, so that every offset lies a head's key and value before the end of the layer.
        base: rows[kv_head * shape.head_stride()..].as_ptr(),
        at: job.keys.padded(),
        dim: shape.padded_dim(),
    };
    let mut to = Shares { sums, stride };
    s.call(AddShares { queries, keys, size: job.size, room: &mut workspace.room, to: &mut to });
}

#[inline(always)]
fn add_heads<S: Simd>(s: S, job: &Job<'_>, kv_head: usize, workspace: &mut Workspace) {
    let ScoreCall { keys, candidates, pool, aggregate: how, .. } = *job.call;
    let pool = pool.map(|pool| (pool.width, job.windows));
    let (shares, heads) = (workspace.shares.floats_mut(), &mut workspace.heads);
    for head in 0..job.call.heads.readers(kv_head).len() {
        let shares = &shares[head * padded(keys.len())..][..keys.len()];
        s.call(AddHead { heads, shares, candidates, pool, how });
    }
}

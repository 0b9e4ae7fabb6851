//! Attention of query rows over live lists: the slots of the positions that are still held, in position order.
//!
//! Promises exactly full attention with minus infinity on dead positions: a slot that is not in the list is never
//! read, whatever it holds. A row's output depends, bit for bit, on its query and its live list only. For this the
//! list is cut into blocks of [`BLOCK`] keys from its start; every score, every block's softmax and every sum is
//! computed in one order, and blocks are merged in order, whether the row is decoded alone or prefilled with others,
//! and whichever thread does it. Never allocates once its scratch has grown to the largest call.
//!
//! Decode gathers rows by slot: each KV row is loaded once for its whole group of query heads while the rows of the
//! next block are prefetched. Prefill runs tiles of query rows against each block, so that a KV row is converted once
//! per tile.

use std::ops::Range;

use hawser_common::SlotId;

use crate::cpu::Isa;
use crate::kv::KvRows;
use crate::query_heads::QueryHeads;
use crate::threads::{SharedMut, Threads};

mod block;
mod inner;
mod plan;
mod scratch;
mod work;

// Scores are made of the same parts.
pub(crate) use block::{LEAST_PACKED_QUERIES, Pack, PackedOffsets, packed_offsets};
pub(crate) use inner::{Ahead, Rows, Softmax, scores};
pub use scratch::AttendScratch;
pub(crate) use scratch::{Floats, Offsets, SUB_BLOCK};

/// Keys of a block: the unit of softmax merging, counted from the start of the live list.
pub const BLOCK: usize = 256;

/// Query rows that follow each other in one sequence.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Which rows of `q` and `out`.
    pub rows: Range<usize>,
    /// Live slots before the first row, in position order.
    pub context: &'a [SlotId],
    /// The rows' own slots, one each: row `i` also sees `own[..=i]`.
    pub own: &'a [SlotId],
}

/// One layer's attention for a batch.
#[derive(Clone, Copy, Debug)]
pub struct AttendCall<'a> {
    /// The rows of every slot named in `spans` must have been written.
    pub kv: &'a KvRows,
    pub layer: usize,
    /// In ascending order of rows, without overlap.
    pub spans: &'a [Span<'a>],
    /// Queries after RoPE: `[rows][Hq][D]`.
    pub q: &'a [f32],
    /// Hq of them, and who reads which KV head.
    pub heads: QueryHeads,
    pub isa: Isa,
}

impl AttendCall<'_> {
    fn check(&self, out: &[f32]) {
        let shape = self.kv.shape();
        let row = self.heads.count() * shape.head_dim;
        assert!(self.layer < shape.layers, "layer {} of {}", self.layer, shape.layers);
        assert_eq!(self.heads.kv_heads(), shape.kv_heads, "KV heads of {:?}", self.heads);
        assert_eq!(self.q.len(), out.len(), "queries and outputs have one shape");
        let mut end = 0;
        for span in self.spans {
            assert!(span.rows.start >= end, "spans are in order and do not overlap");
            assert_eq!(span.rows.len(), span.own.len(), "one own slot per row");
            end = span.rows.end;
        }
        assert!(end * row <= out.len(), "{end} rows of {row} numbers in {}", out.len());
    }
}

/// Writes softmax(q·K / sqrt(D))·V of every row of every span to `out`: `[rows][Hq][D]`. Rows outside all spans keep
/// their value. A query, key or value that is not finite makes the rows that see it NaN.
///
/// # Panics
/// If shapes do not fit, spans overlap, or a live list names the dead slot or one out of range: bugs of the caller.
pub fn attend(threads: &Threads, call: &AttendCall<'_>, out: &mut [f32], scratch: &mut AttendScratch) {
    call.check(out);
    scratch.prepare(call, threads.count());
    let AttendScratch { plan, workspaces, partials, .. } = scratch;
    let job = work::Job {
        call,
        plan,
        partials: SharedMut::new(partials.floats_mut()),
        out: SharedMut::new(out),
        workspaces: SharedMut::new(workspaces),
    };
    threads.run(&|thread| job.run(thread));
}

#[cfg(test)]
mod tests;

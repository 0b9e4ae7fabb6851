//! Cuts a batch into units of work. The cut decides who computes what and when, never what comes out.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{AttendCall, BLOCK};

/// Spans with fewer rows are cut by blocks of keys: there are too few rows to share out.
const LEAST_TILED_ROWS: usize = 4;
/// Query vectors of a tile at most: more would not fit the caches beside a sub-block of keys.
const MOST_TILE_QUERIES: usize = 96;
/// Units per thread that a tiled span should have, so that threads end together.
const UNITS_PER_THREAD: usize = 4;

/// Some query rows of one span against one KV head.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) span: usize,
    /// Rows within the span.
    pub(super) rows: Range<usize>,
    pub(super) kv_head: usize,
    /// Blocks of the live list.
    pub(super) blocks: Range<usize>,
    /// Which entry of [`Plan::splits`] this unit computes a part of; `None`: it computes its rows whole.
    pub(super) split: Option<usize>,
}

/// Rows whose blocks are computed by several units; the last to end merges them.
#[derive(Debug)]
pub(super) struct Split {
    /// The first of its states in the partials: `[blocks][rows][G]`.
    pub(super) first_state: usize,
    pub(super) blocks: usize,
    /// Units that have not ended.
    pending: AtomicUsize,
}

impl Split {
    /// Counts one unit out. Whether it was the last; then all others' states can be read.
    pub(super) fn end_one(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    units: Vec<Unit>,
    splits: Vec<Split>,
    claimed: AtomicUsize,
    partials: usize,
    most_queries: usize,
}

impl Plan {
    pub(super) fn make(&mut self, call: &AttendCall<'_>, threads: usize) {
        self.units.clear();
        self.splits.clear();
        *self.claimed.get_mut() = 0;
        self.partials = 0;
        self.most_queries = 0;
        // Tiles are the longest units, so they come first.
        for (index, span) in call.spans.iter().enumerate() {
            if span.rows.len() >= LEAST_TILED_ROWS {
                self.tile(call, index, threads);
            }
        }
        for (index, span) in call.spans.iter().enumerate() {
            if (1..LEAST_TILED_ROWS).contains(&span.rows.len()) {
                self.split(call, index);
            }
        }
    }

    fn tile(&mut self, call: &AttendCall<'_>, index: usize, threads: usize) {
        let span = &call.spans[index];
        let kv_heads = call.kv.shape().kv_heads;
        let rows = span.rows.len();
        let tiles_wanted = (UNITS_PER_THREAD * threads).div_ceil(kv_heads);
        let group = call.heads.largest_group();
        let most = (MOST_TILE_QUERIES / group).max(LEAST_TILED_ROWS);
        let tile = rows.div_ceil(tiles_wanted).clamp(LEAST_TILED_ROWS, most);
        self.most_queries = self.most_queries.max(tile * group);
        // Later rows see more keys: longest first.
        for tile in (0..rows.div_ceil(tile)).rev().map(|i| i * tile..((i + 1) * tile).min(rows)) {
            let blocks = 0..(span.context.len() + tile.end).div_ceil(BLOCK);
            for kv_head in 0..kv_heads {
                let (rows, blocks) = (tile.clone(), blocks.clone());
                self.units.push(Unit { span: index, rows, kv_head, blocks, split: None });
            }
        }
    }

    fn split(&mut self, call: &AttendCall<'_>, index: usize) {
        let span = &call.spans[index];
        let kv_heads = call.kv.shape().kv_heads;
        let rows = span.rows.len();
        let blocks = (span.context.len() + rows).div_ceil(BLOCK);
        let first_split = self.splits.len();
        for kv_head in 0..kv_heads {
            let queries = rows * call.heads.readers(kv_head).len();
            self.most_queries = self.most_queries.max(queries);
            let pending = AtomicUsize::new(blocks);
            self.splits.push(Split { first_state: self.partials, blocks, pending });
            self.partials += blocks * queries;
        }
        // KV heads of one block follow each other: their rows are neighbours in memory.
        for block in 0..blocks {
            for kv_head in 0..kv_heads {
                let (blocks, split) = (block..block + 1, Some(first_split + kv_head));
                self.units.push(Unit { span: index, rows: 0..rows, kv_head, blocks, split });
            }
        }
    }

    /// The next unit that nobody works on.
    pub(super) fn claim(&self) -> Option<&Unit> {
        self.units.get(self.claimed.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// States that units leave for merging.
    pub(super) fn partials(&self) -> usize {
        self.partials
    }

    /// Query vectors of the largest unit.
    pub(super) fn most_queries(&self) -> usize {
        self.most_queries
    }
}

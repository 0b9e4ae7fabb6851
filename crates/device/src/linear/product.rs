//! The order in which a product visits its tiles: panels of activation rows that stay in the second-level cache,
//! groups of weight tiles that stay in the first, strips of a few rows in registers.
//!
//! Promises that the order changes no bit of the result: every output is computed by one strip, start to end.

use std::marker::PhantomData;
use std::ops::Range;

use super::Write;
use super::activations::Block;
use super::floats::{self, Floats};
use super::format::Format;
use super::lanes::Lanes;
use super::pack::PackedMatrix;
use super::quantised::{self, Quantised};
use crate::threads::SharedMut;

/// Weight tiles of a group take about this much: half of a small first-level cache.
const GROUP_BYTES: usize = 16 << 10;
/// Activation rows of a panel take about this much: a quarter of a small second-level cache.
const PANEL_BYTES: usize = 128 << 10;
/// Rows of a strip at most; panels are whole strips.
const STRIP_ROWS: usize = 8;
/// How far ahead of its use a small batch asks for weights, at most.
const MAX_AHEAD: usize = 8 << 10;
/// Outputs that share a cache line: threads and groups do not split them.
const LINE_ITEMS: usize = 16;

/// Activation rows, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Inputs<'a> {
    Blocks(&'a [Block]),
    Floats(&'a [f32]),
}

/// A product under way: `out[m][rows] = x[m][cols] · weightsᵀ`.
pub(super) struct Product<'a> {
    pub(super) weights: &'a PackedMatrix,
    pub(super) inputs: Inputs<'a>,
    pub(super) m: usize,
    pub(super) out: SharedMut<'a, f32>,
    pub(super) write: Write,
}

impl Product<'_> {
    /// Tiles whose outputs share a cache line.
    pub(super) fn tiles_per_line(&self) -> usize {
        (LINE_ITEMS / self.weights.layout.lanes).max(1)
    }

    /// Bytes of an activation row.
    fn row_bytes(&self) -> usize {
        match self.inputs {
            Inputs::Blocks(blocks) => size_of_val(blocks) / self.m,
            Inputs::Floats(x) => size_of_val(x) / self.m,
        }
    }
}

/// Activation rows that can be multiplied with a tile.
pub(super) trait Strip<S: Lanes> {
    /// Outputs of rows `row..row + M`, a lane per row of each tile.
    ///
    /// # Safety
    /// `tiles` are of the layout that the rows were made for, and the CPU has the features of `S`.
    unsafe fn strip<const T: usize, const M: usize>(
        &self,
        tiles: [*const u8; T],
        row: usize,
        ahead: usize,
    ) -> [[S::Floats; M]; T];
}

/// Computes and writes the outputs of `tiles`.
///
/// # Safety
/// The CPU has the features of `S`, the weights are packed for it, and no other thread computes the same tiles.
#[inline(always)]
pub(super) unsafe fn run<S: Lanes>(product: &Product<'_>, tiles: Range<usize>) {
    let layout = product.weights.layout;
    macro_rules! visit_as {
        (blocks $x:expr, $weights:ty) => {
            // SAFETY: passed on.
            unsafe {
                visit::<S, _>(product, &Quantised::<$weights> { layout, x: $x, weights: PhantomData }, tiles)
            }
        };
        (floats $x:expr, $element:ty) => {
            // SAFETY: passed on.
            unsafe { visit::<S, _>(product, &Floats::<$element> { layout, x: $x, element: PhantomData }, tiles) }
        };
    }
    match (product.weights.format, product.inputs) {
        (Format::Q4_0, Inputs::Blocks(x)) => visit_as!(blocks x, quantised::Q4_0),
        (Format::Q4_1, Inputs::Blocks(x)) => visit_as!(blocks x, quantised::Q4_1),
        (Format::Q8_0, Inputs::Blocks(x)) => visit_as!(blocks x, quantised::Q8_0),
        (Format::F32, Inputs::Floats(x)) => visit_as!(floats x, floats::F32),
        (Format::F16, Inputs::Floats(x)) => visit_as!(floats x, floats::F16),
        (Format::Bf16, Inputs::Floats(x)) => visit_as!(floats x, floats::Bf16),
        _ => unreachable!("quantised weights take blocks, floats take floats"),
    }
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn visit<S: Lanes, R: Strip<S>>(product: &Product<'_>, rows: &R, tiles: Range<usize>) {
    let per_line = product.tiles_per_line();
    let group_tiles = (GROUP_BYTES / product.weights.layout.tile_bytes).max(1).next_multiple_of(per_line);
    let panel_rows = (PANEL_BYTES / product.row_bytes()).max(1).next_multiple_of(STRIP_ROWS);
    for panel in (0..product.m).step_by(panel_rows) {
        let panel_end = product.m.min(panel + panel_rows);
        for group in tiles.clone().step_by(group_tiles) {
            let group = group..tiles.end.min(group + group_tiles);
            let mut row = panel;
            while row < panel_end {
                // SAFETY: passed on.
                row += unsafe {
                    match panel_end - row {
                        1 => strips::<S, R, 2, 1>(product, rows, group.clone(), row),
                        2 => strips::<S, R, 2, 2>(product, rows, group.clone(), row),
                        3 => strips::<S, R, 2, 3>(product, rows, group.clone(), row),
                        4..8 => strips::<S, R, 2, 4>(product, rows, group.clone(), row),
                        _ => strips::<S, R, 1, STRIP_ROWS>(product, rows, group.clone(), row),
                    }
                };
            }
        }
    }
}

/// M rows times each tile of a group, T tiles at a time; returns M.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn strips<S: Lanes, R: Strip<S>, const T: usize, const M: usize>(
    product: &Product<'_>,
    rows: &R,
    group: Range<usize>,
    row: usize,
) -> usize {
    let whole = group.start + group.len() / T * T;
    // SAFETY: passed on.
    unsafe {
        for first in (group.start..whole).step_by(T) {
            strip::<S, R, T, M>(product, rows, first, row);
        }
        for first in whole..group.end {
            strip::<S, R, 1, M>(product, rows, first, row);
        }
    }
    M
}

/// M rows times T tiles.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn strip<S: Lanes, R: Strip<S>, const T: usize, const M: usize>(
    product: &Product<'_>,
    rows: &R,
    first: usize,
    row: usize,
) {
    let weights = product.weights;
    let tile_bytes = weights.layout.tile_bytes;
    let data = &weights.data[first * tile_bytes..][..T * tile_bytes];
    // SAFETY: the tiles are of this matrix; features and disjoint tiles are the caller's promise.
    unsafe {
        let ahead = if row == 0 { (T * tile_bytes).min(MAX_AHEAD) } else { 0 };
        let tiles = std::array::from_fn(|tile| data.as_ptr().add(tile * tile_bytes));
        for (tile, values) in rows.strip::<T, M>(tiles, row, ahead).into_iter().enumerate() {
            let start = (first + tile) * S::LANES;
            let count = S::LANES.min(weights.rows - start);
            for (value, row) in values.into_iter().zip(row..) {
                let at = row * weights.rows + start;
                emit::<S>(product.out.slice(at..at + count), value, product.write);
            }
        }
    }
}

/// Writes as many lanes as `out` has items.
///
/// # Safety
/// The CPU has the features of `S`; `out` has at most `LANES` items.
#[inline(always)]
unsafe fn emit<S: Lanes>(out: &mut [f32], value: S::Floats, write: Write) {
    // SAFETY: whole vectors only where `out` has whole vectors; else through an array that has.
    unsafe {
        if out.len() == S::LANES {
            let value = match write {
                Write::Store => value,
                Write::Add => S::add(S::load_f32(out.as_ptr().cast()), value),
            };
            S::store(out.as_mut_ptr(), value);
            return;
        }
        let mut lanes = [0.0; LINE_ITEMS];
        debug_assert!(S::LANES <= lanes.len());
        S::store(lanes.as_mut_ptr(), value);
        for (out, value) in out.iter_mut().zip(lanes) {
            *out = match write {
                Write::Store => value,
                Write::Add => *out + value,
            };
        }
    }
}

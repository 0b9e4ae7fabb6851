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
use super::pack::{PAIR, PackedMatrix};
use super::quantised::{self, Quantised};
use crate::threads::SharedMut;

/// Weight tiles of a group take about this much: half of a small first-level cache.
const GROUP_BYTES: usize = 16 << 10;
/// Activation rows of a panel take about this much: a quarter of a small second-level cache.
const PANEL_BYTES: usize = 128 << 10;
/// Rows of a strip at most; panels are whole strips.
const STRIP_ROWS: usize = 4;
/// How far ahead of its use a small batch asks for weights, at most.
const MAX_AHEAD: usize = 8 << 10;
/// The widest vector.
const MAX_LANES: usize = 16;

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
    pub(super) out: Out<'a>,
}

/// Where outputs go.
pub(super) enum Out<'a> {
    Floats(SharedMut<'a, f32>, Write),
    /// Not yet rounded, to be added to those of other columns.
    Sums(SharedMut<'a, f64>),
}

impl Product<'_> {
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
    /// Adds to `acc` the products of blocks `piece` of rows `row..row + M` with each tile, a lane per row of the tile.
    /// Asks for weights `ahead` bytes before they are needed, unless that is zero.
    ///
    /// # Safety
    /// `tiles` are of the layout that the rows were made for, and the CPU has the features of `S`.
    unsafe fn strip<const M: usize>(
        &self,
        tiles: [*const u8; PAIR],
        row: usize,
        piece: Range<usize>,
        ahead: usize,
        acc: &mut [[S::Floats; M]; PAIR],
    );
}

/// Computes and writes the outputs of `tiles`.
///
/// # Safety
/// The CPU has the features of `S`, the weights are packed for it, `tiles` are whole pairs, and no other thread
/// computes the same.
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
            unsafe {
                visit::<S, _>(product, &Floats::<$element> { layout, x: $x, element: PhantomData }, tiles)
            }
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
    let group_tiles = (GROUP_BYTES / product.weights.layout.tile_bytes).max(1).next_multiple_of(PAIR);
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
                        1 => strips::<S, R, 1>(product, rows, group.clone(), row),
                        2 | 3 => strips::<S, R, 2>(product, rows, group.clone(), row),
                        _ => strips::<S, R, STRIP_ROWS>(product, rows, group.clone(), row),
                    }
                };
            }
        }
    }
}

/// M rows times the tiles of a group; returns M. Few sizes of strips keep the code small.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn strips<S: Lanes, R: Strip<S>, const M: usize>(
    product: &Product<'_>,
    rows: &R,
    group: Range<usize>,
    row: usize,
) -> usize {
    let weights = product.weights;
    let (tile_bytes, blocks, piece) = (weights.layout.tile_bytes, weights.layout.blocks, weights.piece);
    // The first rows of all read weights that no cache holds yet.
    let ahead = if row == 0 { (PAIR * tile_bytes).min(MAX_AHEAD) } else { 0 };
    for first in group.step_by(PAIR) {
        let data = &weights.data[first * tile_bytes..][..PAIR * tile_bytes];
        // SAFETY: the tiles are of this matrix; features and disjoint tiles are the caller's promise.
        unsafe {
            let tiles = std::array::from_fn(|tile| data.as_ptr().add(tile * tile_bytes));
            let mut values = [[S::zero(); M]; PAIR];
            let mut sums = [[S::no_doubles(); M]; PAIR];
            let mut start = 0;
            while start < blocks {
                rows.strip::<M>(tiles, row, start..start + piece, ahead, &mut values);
                start += piece;
                if piece < blocks {
                    for (sum, value) in sums.as_flattened_mut().iter_mut().zip(values.as_flattened_mut()) {
                        *sum = S::add_wide(*sum, *value);
                        *value = S::zero();
                    }
                }
            }
            if piece < blocks {
                for (sum, value) in sums.as_flattened().iter().zip(values.as_flattened_mut()) {
                    *value = S::narrow(*sum);
                }
            } else if matches!(product.out, Out::Sums(_)) {
                for (sum, value) in sums.as_flattened_mut().iter_mut().zip(values.as_flattened()) {
                    *sum = S::add_wide(*sum, *value);
                }
            }
            for tile in 0..PAIR {
                let start = (first + tile) * S::LANES;
                let count = S::LANES.min(weights.rows.saturating_sub(start));
                if count == 0 {
                    break;
                }
                for index in 0..M {
                    let at = (row + index) * weights.rows + start;
                    let at = at..at + count;
                    match &product.out {
                        Out::Floats(out, write) => emit::<S>(out.slice(at), values[tile][index], *write),
                        Out::Sums(out) => emit_wide::<S>(out.slice(at), sums[tile][index]),
                    }
                }
            }
        }
    }
    M
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
        let mut lanes = [0.0; MAX_LANES];
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

/// As [`emit`], of sums that are stored.
///
/// # Safety
/// As [`emit`].
#[inline(always)]
unsafe fn emit_wide<S: Lanes>(out: &mut [f64], value: S::Doubles) {
    // SAFETY: whole vectors only where `out` has whole vectors; else through an array that has.
    unsafe {
        if out.len() == S::LANES {
            S::store_wide(out.as_mut_ptr(), value);
            return;
        }
        let mut lanes = [0.0; MAX_LANES];
        debug_assert!(S::LANES <= lanes.len());
        S::store_wide(lanes.as_mut_ptr(), value);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

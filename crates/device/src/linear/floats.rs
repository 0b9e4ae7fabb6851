//! Float weights times float activations: float checkpoints, and tests that compare numbers exactly.
//!
//! The arithmetic of every output, whatever the batch: columns in runs of 32; a run is summed by fma in ascending
//! order, starting from zero; then `acc = acc + run`. Short runs keep the rounding error of long rows small.

use std::marker::PhantomData;
use std::ops::Range;

use super::lanes::Lanes;
use super::pack::{PAIR, TileLayout};
use super::product::Strip;

const RUN: usize = 32;

/// One float format: how a column of a tile is widened.
pub(super) trait Element<S: Lanes> {
    const BYTES: usize;

    /// # Safety
    /// `from` points at a column of a tile, and the CPU has the features of `S`.
    unsafe fn load(from: *const u8) -> S::Floats;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl<S: Lanes> Element<S> for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> S::Floats {
        // SAFETY: passed on.
        unsafe { S::load_f32(from) }
    }
}

impl<S: Lanes> Element<S> for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> S::Floats {
        // SAFETY: passed on.
        unsafe { S::load_f16(from) }
    }
}

impl<S: Lanes> Element<S> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> S::Floats {
        // SAFETY: passed on.
        unsafe { S::load_bf16(from) }
    }
}

/// Rows of f32 activations, `layout.blocks` columns each.
pub(super) struct Floats<'a, E> {
    pub(super) layout: TileLayout,
    pub(super) x: &'a [f32],
    pub(super) element: PhantomData<E>,
}

impl<S: Lanes, E: Element<S>> Strip<S> for Floats<'_, E> {
    #[inline(always)]
    unsafe fn strip<const M: usize>(
        &self,
        tiles: [*const u8; PAIR],
        row: usize,
        piece: Range<usize>,
        _ahead: usize,
        acc: &mut [[S::Floats; M]; PAIR],
    ) {
        let cols = self.layout.blocks;
        let x = &self.x[row * cols..][..M * cols];
        // SAFETY: the caller promises the tiles and the features; columns stay below `cols`.
        unsafe {
            for start in piece.clone().step_by(RUN) {
                let end = piece.end.min(start + RUN);
                let mut run = [[S::zero(); M]; PAIR];
                for col in start..end {
                    fma_column::<S, E, M>(tiles, x, col, &mut run);
                }
                for tile in 0..PAIR {
                    for row in 0..M {
                        acc[tile][row] = S::add(acc[tile][row], run[tile][row]);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`Strip::strip`]; `x` holds M rows, and `col` is a column of theirs.
#[inline(always)]
unsafe fn fma_column<S: Lanes, E: Element<S>, const M: usize>(
    tiles: [*const u8; PAIR],
    x: &[f32],
    col: usize,
    acc: &mut [[S::Floats; M]; PAIR],
) {
    let cols = x.len() / M;
    // SAFETY: the caller's promise.
    unsafe {
        let weights = tiles.map(|tile| E::load(tile.add(col * S::LANES * E::BYTES)));
        for row in 0..M {
            let x = S::splat(*x.get_unchecked(row * cols + col));
            for (acc, weights) in acc.iter_mut().zip(weights) {
                acc[row] = S::fma(weights, x, acc[row]);
            }
        }
    }
}

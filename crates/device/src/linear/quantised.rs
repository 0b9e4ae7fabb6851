//! Quantised weights times int8 activations.
//!
//! The arithmetic of every output, whatever the batch: per block of 32, in ascending order,
//! `acc = fma(x_scale, value, acc)`, where `dot` is the exact integer dot product of the quants and `value` is
//! `d * dot` (Q8_0), `d * (dot - 8 * x_sum)` (Q4_0) or `fma(d, dot, m * x_sum)` (Q4_1), rounded once (the product
//! `m * x_sum` apart).
//!
//! All three are `fma(d, dot', m * x_sum)`: where weights have been raised by `r` to make them unsigned, `m` is
//! `-r * d`, and `m * x_sum` is exact, because 11 and 12 significant bits make 23.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::Block;
use super::lanes::Lanes;
use super::pack::{PAIR, TileLayout};
use super::product::Strip;

/// One quantised format.
pub(super) trait Weights<S: Lanes> {
    /// Bytes of a block's scales, per lane.
    const SCALE_BYTES: usize;
    /// Bytes of a block's quants, per lane.
    const QUANT_BYTES: usize;
    /// Whether the second scale is not zero throughout.
    const SECOND: bool;

    /// A block's `d` and `m`, a lane per row of the tile.
    ///
    /// # Safety
    /// `tile` is a tile of this format, `block` one of its blocks, and the CPU has the features of `S`.
    unsafe fn scales(tile: *const u8, block: usize) -> [S::Floats; 2];

    /// Integer dot products of a block of each tile with a block of each row; `quants` are those of the block.
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn dots<const M: usize>(quants: [*const u8; PAIR], x: [&Block; M]) -> [[S::Sum; M]; PAIR];
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q8_0;

impl<S: Lanes> Weights<S> for Q4_1 {
    const SCALE_BYTES: usize = 4;
    const QUANT_BYTES: usize = 16;
    const SECOND: bool = true;

    #[inline(always)]
    unsafe fn scales(tile: *const u8, block: usize) -> [S::Floats; 2] {
        let scales = tile.wrapping_add(block * S::LANES * 4);
        // SAFETY: a block has two scales of LANES halves.
        unsafe { [S::load_f16(scales), S::load_f16(scales.add(S::LANES * 2))] }
    }

    #[inline(always)]
    unsafe fn dots<const M: usize>(quants: [*const u8; PAIR], x: [&Block; M]) -> [[S::Sum; M]; PAIR] {
        // SAFETY: passed on.
        unsafe { nibble_dots::<S, M>(quants, x) }
    }
}

impl<S: Lanes> Weights<S> for Q4_0 {
    const SCALE_BYTES: usize = 2;
    const QUANT_BYTES: usize = 16;
    const SECOND: bool = true;

    #[inline(always)]
    unsafe fn scales(tile: *const u8, block: usize) -> [S::Floats; 2] {
        // SAFETY: a block has one scale of LANES halves.
        unsafe {
            let scale = S::load_f16(tile.add(block * S::LANES * 2));
            [scale, S::mul(scale, S::splat(-8.0))]
        }
    }

    #[inline(always)]
    unsafe fn dots<const M: usize>(quants: [*const u8; PAIR], x: [&Block; M]) -> [[S::Sum; M]; PAIR] {
        // SAFETY: passed on.
        unsafe { nibble_dots::<S, M>(quants, x) }
    }
}

impl<S: Lanes> Weights<S> for Q8_0 {
    const SCALE_BYTES: usize = 2;
    const QUANT_BYTES: usize = 32;
    const SECOND: bool = S::RAISE != 0.0;

    #[inline(always)]
    unsafe fn scales(tile: *const u8, block: usize) -> [S::Floats; 2] {
        // SAFETY: a block has one scale of LANES halves.
        unsafe {
            let scale = S::load_f16(tile.add(block * S::LANES * 2));
            [scale, S::mul(scale, S::splat(-S::RAISE))]
        }
    }

    #[inline(always)]
    unsafe fn dots<const M: usize>(quants: [*const u8; PAIR], x: [&Block; M]) -> [[S::Sum; M]; PAIR] {
        // SAFETY: a block has eight groups of LANES * 4 bytes.
        unsafe {
            let mut sums = [[S::no_sum(); M]; PAIR];
            for group in 0..8 {
                let bytes = quants.map(|quants| S::bytes(quants.add(group * S::LANES * 4)));
                for row in 0..M {
                    let x = S::splat_group(x[row], group);
                    for tile in 0..PAIR {
                        sums[tile][row] = S::pin_sum(S::add_signed(sums[tile][row], bytes[tile], x));
                    }
                }
            }
            sums
        }
    }
}

/// Dot products of four-bit weights. A group of weights meets all rows before the next is loaded, and compilers must
/// keep that order: neighbouring instructions then belong to different sums and need not wait for each other.
///
/// # Safety
/// As [`Weights::dots`].
#[inline(always)]
unsafe fn nibble_dots<S: Lanes, const M: usize>(
    quants: [*const u8; PAIR],
    x: [&Block; M],
) -> [[S::Sum; M]; PAIR] {
    // SAFETY: a block has four groups of LANES * 4 bytes.
    unsafe {
        let mut sums = [[S::no_sum(); M]; PAIR];
        add_group::<S, M>(&mut sums, quants, x, 0);
        add_group::<S, M>(&mut sums, quants, x, 1);
        add_group::<S, M>(&mut sums, quants, x, 2);
        add_group::<S, M>(&mut sums, quants, x, 3);
        for sum in sums.as_flattened_mut() {
            *sum = S::pin_sum(S::join_nibbles(*sum));
        }
        sums
    }
}

/// Adds groups `group` (low nibbles) and `group + 4` (high nibbles).
///
/// # Safety
/// As [`Weights::dots`]; `group` is below four.
#[inline(always)]
unsafe fn add_group<S: Lanes, const M: usize>(
    sums: &mut [[S::Sum; M]; PAIR],
    quants: [*const u8; PAIR],
    x: [&Block; M],
    group: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = quants.map(|quants| S::bytes(quants.add(group * S::LANES * 4)));
        let low = bytes.map(|bytes| S::low_nibbles(bytes));
        for row in 0..M {
            let x = S::splat_group(x[row], group);
            for tile in 0..PAIR {
                sums[tile][row] = S::pin_sum(S::add_nibbles(sums[tile][row], low[tile], x));
            }
        }
        let high = bytes.map(|bytes| S::high_nibbles(bytes));
        for row in 0..M {
            let x = S::splat_group(x[row], group + 4);
            for tile in 0..PAIR {
                sums[tile][row] = S::pin_sum(S::add_nibbles(sums[tile][row], high[tile], x));
            }
        }
    }
}

/// Rows of int8 activations, `layout.blocks` blocks each.
pub(super) struct Quantised<'a, W> {
    pub(super) layout: TileLayout,
    pub(super) x: &'a [Block],
    pub(super) weights: PhantomData<W>,
}

impl<S: Lanes, W: Weights<S>> Strip<S> for Quantised<'_, W> {
    #[inline(always)]
    unsafe fn strip<const M: usize>(
        &self,
        tiles: [*const u8; PAIR],
        row: usize,
        piece: Range<usize>,
        ahead: usize,
        acc: &mut [[S::Floats; M]; PAIR],
    ) {
        let TileLayout { blocks, scale_bytes, .. } = self.layout;
        let x = &self.x[row * blocks..][..M * blocks];
        // SAFETY: the caller promises the tiles and the features.
        unsafe {
            // Stays in memory, because the sums of a block need the registers.
            let acc = std::hint::black_box(acc);
            for block in piece {
                let quants = tiles.map(|tile| tile.add(scale_bytes + block * S::LANES * W::QUANT_BYTES));
                if ahead > 0 {
                    prefetch::<S, W>(tiles, quants, block, ahead);
                }
                let x: [&Block; M] = std::array::from_fn(|row| x.get_unchecked(row * blocks + block));
                let dots = W::dots::<M>(quants, x);
                add_block::<S, W, M>(acc, tiles, block, dots, x);
            }
        }
    }
}

/// `acc = fma(x_scale, fma(d, dot, m * x_sum), acc)`, one operation for all rows before the next one.
///
/// # Safety
/// As [`Strip::strip`].
#[inline(always)]
unsafe fn add_block<S: Lanes, W: Weights<S>, const M: usize>(
    acc: &mut [[S::Floats; M]; PAIR],
    tiles: [*const u8; PAIR],
    block: usize,
    dots: [[S::Sum; M]; PAIR],
    x: [&Block; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut values = [[S::zero(); M]; PAIR];
        for (value, dot) in values.as_flattened_mut().iter_mut().zip(dots.as_flattened()) {
            *value = S::pin(S::to_floats(*dot));
        }
        for tile in 0..PAIR {
            let [d, m] = W::scales(tiles[tile], block);
            let (values, acc) = (&mut values[tile], &mut acc[tile]);
            if W::SECOND {
                let mut least = [S::zero(); M];
                for (least, x) in least.iter_mut().zip(x) {
                    *least = S::pin(S::mul(m, S::splat(x.sum)));
                }
                for (value, least) in values.iter_mut().zip(least) {
                    *value = S::pin(S::fma(d, *value, least));
                }
            } else {
                for value in values.iter_mut() {
                    *value = S::pin(S::mul(d, *value));
                }
            }
            for ((acc, value), x) in acc.iter_mut().zip(values).zip(x) {
                *acc = S::fma(S::splat(x.scale), *value, *acc);
            }
        }
    }
}

/// Asks for what lies `ahead` bytes behind a block of each tile, wherever that is.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
unsafe fn prefetch<S: Lanes, W: Weights<S>>(
    tiles: [*const u8; PAIR],
    quants: [*const u8; PAIR],
    block: usize,
    ahead: usize,
) {
    for tile in 0..PAIR {
        // SAFETY: passed on.
        unsafe {
            S::prefetch(tiles[tile].wrapping_add(block * S::LANES * W::SCALE_BYTES + ahead));
            for line in 0..S::LANES * W::QUANT_BYTES / 64 {
                S::prefetch(quants[tile].wrapping_add(line * 64 + ahead));
            }
        }
    }
}

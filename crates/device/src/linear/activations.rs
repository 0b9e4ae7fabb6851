//! Activations as int8 blocks: 32 numbers share a scale, so that products with quantised weights are integer dot
//! products.
//!
//! Promises that a row's blocks depend on that row only. A number that is not finite makes its whole block not
//! finite, never silently wrong.

use super::format::BLOCK;
use super::kernels::Kernel;
use crate::threads::{SharedMut, Threads, split};

/// Below this many numbers, waking other threads costs more than they save.
const PARALLEL_FROM: usize = 16 << 10;
/// Smaller numbers count as zero: their reciprocals would overflow.
const LEAST_PEAK: f32 = 1e-30;

/// 32 activations: `x[i] ≈ scale * quants[i]`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Block {
    pub(super) scale: f32,
    /// Sum of `quants`: an integer, exact in f32.
    pub(super) sum: f32,
    pub(super) quants: [i8; BLOCK],
}

/// Working memory of [`super::matmul`]. Grows to the largest product and is then reused.
#[derive(Debug, Default)]
pub struct MatmulScratch {
    blocks: Vec<Block>,
}

impl MatmulScratch {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The blocks of `x`, whole blocks per row.
    pub(super) fn quantise(&mut self, threads: &Threads, kernel: Kernel, x: &[f32]) -> &[Block] {
        let count = x.len() / BLOCK;
        if self.blocks.len() < count {
            self.blocks.resize(count, Block::default());
        }
        let blocks = &mut self.blocks[..count];
        if x.len() < PARALLEL_FROM || threads.count() == 1 {
            kernel.quantise(x, blocks);
        } else {
            let shared = SharedMut::new(blocks);
            threads.run(&|index| {
                let range = split(count, threads.count(), index, 8);
                let x = &x[range.start * BLOCK..range.end * BLOCK];
                // SAFETY: `split` gives each part its own range.
                kernel.quantise(x, unsafe { shared.slice(range) });
            });
        }
        &self.blocks[..count]
    }
}

/// Quantises whole blocks. Plain arithmetic that compilers vectorise; inlined into one function per instruction set.
#[inline(always)]
pub(super) fn quantise(x: &[f32], blocks: &mut [Block]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        quantise_block(x, block);
    }
}

#[inline(always)]
fn quantise_block(x: &[f32; BLOCK], block: &mut Block) {
    // Magnitudes compare like their bits, and NaN is above infinity, so the peak of a bad block is bad.
    let peak = x.iter().fold(0, |peak: u32, x| peak.max(x.to_bits() & (u32::MAX >> 1)));
    let peak = f32::from_bits(peak);
    let (scale, inverse) = if peak < LEAST_PEAK { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) };
    // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    let mut quants = [0i32; BLOCK];
    for (quant, x) in quants.iter_mut().zip(x) {
        *quant = (x * inverse + ROUND).to_bits().cast_signed().wrapping_sub(ROUND.to_bits().cast_signed());
    }
    let mut sum = 0i32;
    for (byte, quant) in block.quants.iter_mut().zip(quants) {
        *byte = quant as i8;
        sum += i32::from(quant as i8);
    }
    block.scale = scale;
    block.sum = sum as f32;
}

//! Packed weights and matrix products.
//!
//! One arithmetic serves decode (one row) and prefill (hundreds): activations become int8 per block of 32, blocks are
//! multiplied exactly in integers, and block results are added in f32 in a fixed order (see `quantised`). Float
//! weights use f32 throughout (see `floats`). Matrices that ranks share out by columns add pieces of columns in f64, so
//! that a sum does not depend on who adds which pieces.
//!
//! Promises that an output row is bit for bit the same whatever rows are computed with it and by however many
//! threads. Instruction sets agree bit for bit too. Never allocates once its scratch has grown.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod floats;
mod format;
mod kernels;
mod lanes;
mod pack;
mod portable;
mod product;
mod quantised;
#[cfg(test)]
mod tests;

pub use activations::MatmulScratch;
pub use format::{Columns, Format, LinearError, RawMatrix};
pub use pack::PackedMatrix;

use crate::threads::{SharedMut, Threads, split};
use pack::PAIR;
use product::{Inputs, Out, Product};

/// What becomes of the old contents of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `out = W x`.
    Store,
    /// `out = out + W x`: a residual connection.
    Add,
}

/// `out[m][rows] = W x`, or `+=`, for activations `x[m][cols]`; `m` follows from the length of `x` and may be zero.
/// A row that holds a number that is not finite gives outputs that are not finite, and disturbs no other row.
pub fn matmul(
    threads: &Threads,
    w: &PackedMatrix,
    x: &[f32],
    out: &mut [f32],
    write: Write,
    scratch: &mut MatmulScratch,
) {
    let m = rows_of(w, x, out.len());
    run(threads, w, (x, m), Out::Floats(SharedMut::new(out), write), scratch);
}

/// `out[m][rows] = W x`, before the last rounding to f32: what a rank gives to a sum over ranks. See
/// [`PackedMatrix::in_pieces`].
///
/// Pieces are f32 numbers, 24 bits each, and f64 has 53: their sum is exact in any order, hence the same however they
/// are shared out among ranks, unless a piece is smaller than another by a factor of some 2^26. Where bits are lost
/// to such a difference, they are too far down to be seen after rounding to f32, but where the sum lies within 2^-52
/// of the middle between two f32 numbers.
pub fn matmul_sums(
    threads: &Threads,
    w: &PackedMatrix,
    x: &[f32],
    out: &mut [f64],
    scratch: &mut MatmulScratch,
) {
    let m = rows_of(w, x, out.len());
    run(threads, w, (x, m), Out::Sums(SharedMut::new(out)), scratch);
}

/// Rows of `x`.
fn rows_of(w: &PackedMatrix, x: &[f32], outputs: usize) -> usize {
    let m = x.len() / w.cols;
    assert_eq!(x.len(), m * w.cols, "activations are whole rows of {} columns", w.cols);
    assert_eq!(outputs, m * w.rows, "outputs are {m} rows of {} items", w.rows);
    m
}

fn run(
    threads: &Threads,
    w: &PackedMatrix,
    (x, m): (&[f32], usize),
    out: Out<'_>,
    scratch: &mut MatmulScratch,
) {
    if m == 0 {
        return;
    }
    let inputs = if w.format.is_quantised() {
        Inputs::Blocks(scratch.quantise(threads, w.kernel, x))
    } else {
        Inputs::Floats(x)
    };
    let product = Product { weights: w, inputs, m, out };
    threads.run(&|index| {
        let tiles = split(w.tiles(), threads.count(), index, PAIR);
        // SAFETY: `split` gives each part its own pairs of tiles.
        unsafe { w.kernel.run(&product, tiles) };
    });
}

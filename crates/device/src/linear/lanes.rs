//! The few vector operations that the products are written in, one lane per output row.

use super::activations::Block;

/// Vectors of one instruction set.
///
/// # Safety
/// Every function needs the CPU features of its instruction set, and pointers valid for what it reads or writes:
/// `LANES` items of the named type, without alignment. Functions are inlined into a caller that enables the features.
pub(super) trait Lanes: Copy {
    /// f32 lanes of a vector: rows of a tile.
    const LANES: usize;
    /// Four bytes per lane.
    type Bytes: Copy;
    /// Integers on the way to a block's dot product.
    type Sum: Copy;
    type Floats: Copy;
    /// As many lanes of f64.
    type Doubles: Copy;

    /// Four bytes per lane.
    unsafe fn bytes(from: *const u8) -> Self::Bytes;
    /// The low four bits of each byte.
    unsafe fn low_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    /// The high four bits of each byte, moved down.
    unsafe fn high_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    /// Four activations in every lane: group `group`, below eight, of a block.
    unsafe fn splat_group(x: &Block, group: usize) -> Self::Bytes;

    /// No products yet.
    unsafe fn no_sum() -> Self::Sum;
    /// Adds, per lane, the four products of weights in 0..16 and activations. Exact for the eight groups of a block.
    unsafe fn add_nibbles(sum: Self::Sum, weights: Self::Bytes, x: Self::Bytes) -> Self::Sum;
    /// Lanes of a block's sum of `add_nibbles`, joined where they are still apart.
    unsafe fn join_nibbles(sum: Self::Sum) -> Self::Sum;
    /// What `add_signed` adds to each weight, so that it is not negative.
    const RAISE: f32;
    /// As `add_nibbles`, of signed bytes plus `RAISE`.
    unsafe fn add_signed(sum: Self::Sum, weights: Self::Bytes, x: Self::Bytes) -> Self::Sum;
    /// A joined sum as floats, exactly.
    unsafe fn to_floats(sum: Self::Sum) -> Self::Floats;
    /// The same sum, but compilers cannot tell, nor reorder two of these.
    unsafe fn pin_sum(sum: Self::Sum) -> Self::Sum;
    /// The same floats, but compilers cannot tell, nor reorder two of these.
    unsafe fn pin(value: Self::Floats) -> Self::Floats;

    unsafe fn no_doubles() -> Self::Doubles;
    /// `sum + value`, widened first.
    unsafe fn add_wide(sum: Self::Doubles, value: Self::Floats) -> Self::Doubles;
    /// Rounded to nearest.
    unsafe fn narrow(value: Self::Doubles) -> Self::Floats;
    unsafe fn store_wide(to: *mut f64, value: Self::Doubles);

    unsafe fn zero() -> Self::Floats;
    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn load_f32(from: *const u8) -> Self::Floats;
    unsafe fn load_f16(from: *const u8) -> Self::Floats;
    unsafe fn load_bf16(from: *const u8) -> Self::Floats;
    unsafe fn store(to: *mut f32, value: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Asks for the cache line at `at`, which may be anywhere.
    unsafe fn prefetch(at: *const u8);
}

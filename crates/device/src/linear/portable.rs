//! Eight lanes in plain Rust: every target, and what the vector versions are tested against.

use half::{bf16, f16};

use super::activations::Block;
use super::lanes::Lanes;

#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;

/// # Safety
/// `from` is valid for `LANES` items of type T, at any alignment.
#[inline(always)]
unsafe fn read<T: Copy>(from: *const u8) -> [T; LANES] {
    // SAFETY: the caller's promise; an array of T: Copy numbers has no invalid bytes.
    unsafe { from.cast::<[T; LANES]>().read_unaligned() }
}

/// `sum` and, per lane, its four products.
#[inline(always)]
fn add_products(sum: [i32; LANES], weights: [i32; 4 * LANES], x: [u8; 4 * LANES]) -> [i32; LANES] {
    let product = |at: usize| weights[at] * i32::from(x[at].cast_signed());
    std::array::from_fn(|lane| sum[lane] + (4 * lane..4 * lane + 4).map(product).sum::<i32>())
}

impl Lanes for Portable {
    const LANES: usize = LANES;
    type Bytes = [u8; 4 * LANES];
    type Sum = [i32; LANES];
    type Floats = [f32; LANES];
    type Doubles = [f64; LANES];

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Bytes {
        // SAFETY: the trait's contract.
        unsafe { from.cast::<Self::Bytes>().read() }
    }

    #[inline(always)]
    unsafe fn low_nibbles(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|byte| byte & 15)
    }

    #[inline(always)]
    unsafe fn high_nibbles(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|byte| byte >> 4)
    }

    #[inline(always)]
    unsafe fn splat_group(x: &Block, group: usize) -> Self::Bytes {
        std::array::from_fn(|at| x.quants[group * 4 + at % 4].cast_unsigned())
    }

    #[inline(always)]
    unsafe fn no_sum() -> Self::Sum {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn add_nibbles(sum: Self::Sum, weights: Self::Bytes, x: Self::Bytes) -> Self::Sum {
        add_products(sum, weights.map(i32::from), x)
    }

    #[inline(always)]
    unsafe fn join_nibbles(sum: Self::Sum) -> Self::Sum {
        sum
    }

    const RAISE: f32 = 0.0;

    #[inline(always)]
    unsafe fn add_signed(sum: Self::Sum, weights: Self::Bytes, x: Self::Bytes) -> Self::Sum {
        add_products(sum, weights.map(|byte| i32::from(byte.cast_signed())), x)
    }

    #[inline(always)]
    unsafe fn to_floats(sum: Self::Sum) -> Self::Floats {
        sum.map(|sum| sum as f32)
    }

    #[inline(always)]
    unsafe fn pin_sum(sum: Self::Sum) -> Self::Sum {
        sum
    }

    #[inline(always)]
    unsafe fn pin(value: Self::Floats) -> Self::Floats {
        value
    }

    #[inline(always)]
    unsafe fn no_doubles() -> Self::Doubles {
        [0.0; LANES]
    }

    #[inline(always)]
    unsafe fn add_wide(sum: Self::Doubles, value: Self::Floats) -> Self::Doubles {
        std::array::from_fn(|lane| sum[lane] + f64::from(value[lane]))
    }

    #[inline(always)]
    unsafe fn narrow(value: Self::Doubles) -> Self::Floats {
        value.map(|value| value as f32)
    }

    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, value: Self::Doubles) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<Self::Doubles>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Floats {
        [0.0; LANES]
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::Floats {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self::Floats {
        // SAFETY: the trait's contract.
        unsafe { read::<[u8; 4]>(from) }.map(f32::from_le_bytes)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::Floats {
        // SAFETY: the trait's contract.
        unsafe { read::<[u8; 2]>(from) }.map(|half| f16::from_le_bytes(half).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::Floats {
        // SAFETY: the trait's contract.
        unsafe { read::<[u8; 2]>(from) }.map(|half| bf16::from_le_bytes(half).to_f32())
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::Floats) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<Self::Floats>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

//! How kernels read numbers of a KV row, as a type parameter.

use crate::simd::Simd;

/// A row type at compile time.
pub(crate) trait RowFormat {
    type Item: Copy + Sync;
    /// Whether a load needs registers beside its result.
    const CONVERTS: bool;

    /// # Safety
    /// `from` must be valid for reads of `LANES` items.
    unsafe fn load<S: Simd>(s: S, from: *const Self::Item) -> S::V;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl RowFormat for F32 {
    type Item = f32;
    const CONVERTS: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const f32) -> S::V {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { s.load(from) }
    }
}

impl RowFormat for F16 {
    type Item = u16;
    const CONVERTS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u16) -> S::V {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { s.load_f16(from) }
    }
}

impl RowFormat for Bf16 {
    type Item = u16;
    const CONVERTS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u16) -> S::V {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { s.load_bf16(from) }
    }
}

//! Vector types that kernels are generic over: one kernel, one vector type per [`Isa`].
//!
//! A value of a [`Simd`] type is proof that this CPU has its instructions: only [`dispatch`] makes one. So kernels
//! are written once, as [`Kernel`]s, and compiled for each instruction set. Every function that such a kernel calls
//! with vectors must be `#[inline(always)]`, or it is compiled without the instructions.
//!
//! Promises that an operation on a lane depends on that lane only, and that sums over lanes have a fixed order, so a
//! kernel's results do not depend on how it groups its rows. Between instruction sets results differ by rounding.

use crate::cpu::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
mod portable;

pub(crate) use exp::{exp2, sigmoid};

/// The widest vector in f32 lanes: rows that are a multiple of it need no tail.
pub(crate) const MAX_LANES: usize = 16;

/// f32 vectors of one instruction set. Pointers may be unaligned; they must be valid for [`Simd::LANES`] items.
pub(crate) trait Simd: Copy {
    type V: Copy;
    /// f32 lanes; divides [`MAX_LANES`].
    const LANES: usize;
    /// Query rows that a kernel should work on at once: as many as the registers hold.
    const QUERIES: usize;

    /// Runs `kernel` as a function of its own: what is big or used in many places is then compiled once.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the CPU can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of the two; `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of the two; `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `then` where `x >= least` or `x` is NaN, else 0.
    fn zero_below(self, x: Self::V, least: Self::V, then: Self::V) -> Self::V;
    /// Adds the low bits of `n`, read as an integer, to the exponent of `x`.
    fn add_to_exponent(self, x: Self::V, n: Self::V) -> Self::V;
    /// Sum over lanes, in a fixed order.
    fn sum(self, x: Self::V) -> f32;
    /// The largest lane.
    fn largest(self, x: Self::V) -> f32;
    /// The first lane.
    fn first(self, x: Self::V) -> f32;
    /// Asks for the cache line at `at`, which may be any address.
    fn prefetch(self, at: *const u8);

    /// # Safety
    /// `from` must be valid for reads of `LANES` f32.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// # Safety
    /// `from` must be valid for reads of `LANES` f16.
    unsafe fn load_f16(self, from: *const u16) -> Self::V;
    /// # Safety
    /// `from` must be valid for reads of `LANES` bf16.
    unsafe fn load_bf16(self, from: *const u16) -> Self::V;
    /// # Safety
    /// `to` must be valid for writes of `LANES` f32.
    unsafe fn store(self, x: Self::V, to: *mut f32);
    /// Writes the four sums over lanes, each as [`Simd::sum`] gives it: two to `to[0]`, two to `to[1]`.
    ///
    /// # Safety
    /// Both must be valid for writes of 2 f32.
    unsafe fn store_sums(self, x: [Self::V; 4], to: [*mut f32; 2]);
}

/// A computation that is generic over the vector type.
pub(crate) trait Kernel {
    type Output;
    /// Implementations must be `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` with the vectors of `isa`.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.is_available(), "this CPU has no {}", isa.name());
    match isa {
        Isa::Portable => kernel.run(portable::Portable),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: availability was asserted above.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: availability was asserted above.
        Isa::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("only x86-64 CPUs have it"),
    }
}

#[cfg(test)]
mod tests;

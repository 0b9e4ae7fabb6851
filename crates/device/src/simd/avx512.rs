//! Sixteen lanes with AVX-512 F, BW, DQ and VL.

use std::arch::x86_64::*;

use super::{Kernel, Simd, avx2};

/// Proof that the CPU has the features. Made by [`run`] only.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// # Safety
/// The CPU must have the features named here.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    // Four rows against four keys are sixteen of 32 registers; more rows would need a second pass over the sums.
    const QUERIES: usize = 4;

    // On `run` itself the attribute has no effect: the compiler drops it from functions with target features.
    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn zero_below(self, x: __m512, least: __m512, then: __m512) -> __m512 {
        // SAFETY: `self` proves the features. "Not less" is true for NaN.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least), then) }
    }

    #[inline(always)]
    fn add_to_exponent(self, x: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n))
        }
    }

    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: `self` proves the features, AVX2 included.
        unsafe { _mm_cvtss_f32(avx2::sums([halves(x); 4])) }
    }

    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    fn first(self, x: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cvtss_f32(x) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch is a hint: it faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: `self` proves the features; the caller guarantees 16 readable items.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: `self` proves the features; the caller guarantees 16 readable items.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: `self` proves the features; the caller guarantees 16 readable items.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store(self, x: __m512, to: *mut f32) {
        // SAFETY: `self` proves the features; the caller guarantees 16 writable items.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn store_sums(self, x: [__m512; 4], to: [*mut f32; 2]) {
        // SAFETY: `self` proves the features; the caller guarantees 2 writable items at each.
        unsafe {
            let sums = avx2::sums([halves(x[0]), halves(x[1]), halves(x[2]), halves(x[3])]);
            avx2::store_pairs(sums, to);
        }
    }
}

/// The upper eight lanes added to the lower eight.
///
/// # Safety
/// The CPU must have AVX-512 F and DQ.
#[inline(always)]
unsafe fn halves(x: __m512) -> __m256 {
    // SAFETY: the caller guarantees the features.
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)) }
}

//! Eight lanes with AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the CPU has AVX2, FMA and F16C. Made by [`run`] only.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// # Safety
/// The CPU must have the features named here.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    // Three rows against four keys are twelve sums; with the three query vectors and a key they fill 16 registers.
    const QUERIES: usize = 3;

    // On `run` itself the attribute has no effect: the compiler drops it from functions with target features.
    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn zero_below(self, x: __m256, least: __m256, then: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, least), then) }
    }

    #[inline(always)]
    fn add_to_exponent(self, x: __m256, n: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe {
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n))
        }
    }

    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_cvtss_f32(sums([x; 4])) }
    }

    #[inline(always)]
    fn largest(self, x: __m256) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn first(self, x: __m256) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_cvtss_f32(x) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch is a hint: it faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: `self` proves the features; the caller guarantees 8 readable items.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        // SAFETY: `self` proves the features; the caller guarantees 8 readable items.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: `self` proves the features; the caller guarantees 8 readable items.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store(self, x: __m256, to: *mut f32) {
        // SAFETY: `self` proves the features; the caller guarantees 8 writable items.
        unsafe { _mm256_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn store_sums(self, x: [__m256; 4], to: [*mut f32; 2]) {
        // SAFETY: `self` proves the features; the caller guarantees 2 writable items at each.
        unsafe { store_pairs(sums(x), to) }
    }
}

/// # Safety
/// Both must be valid for writes of 2 f32.
#[inline(always)]
pub(super) unsafe fn store_pairs(x: __m128, to: [*mut f32; 2]) {
    // SAFETY: SSE is part of x86-64; the caller guarantees the memory.
    unsafe {
        _mm_storel_pd(to[0].cast(), _mm_castps_pd(x));
        _mm_storeh_pd(to[1].cast(), _mm_castps_pd(x));
    }
}

/// Sums over lanes: ((0+1) + (2+3)) + ((4+5) + (6+7)) of each.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn sums(x: [__m256; 4]) -> __m128 {
    // SAFETY: the caller guarantees the features.
    unsafe {
        let fours = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
        _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours))
    }
}

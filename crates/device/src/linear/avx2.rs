//! Eight lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::activations::Block;
use super::lanes::Lanes;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// An empty instruction that claims to change its operand.
#[inline]
#[target_feature(enable = "avx2")]
fn pin_sum(mut value: __m256i) -> __m256i {
    // SAFETY: no instruction, no memory, no flags.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// An empty instruction that claims to change its operand.
#[inline]
#[target_feature(enable = "avx2")]
fn pin(mut value: __m256) -> __m256 {
    // SAFETY: no instruction, no memory, no flags.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each passes on the trait's contract: features and pointers"
)]
impl Lanes for Avx2 {
    const LANES: usize = 8;
    type Bytes = __m256i;
    type Sum = __m256i;
    type Floats = __m256;
    type Doubles = [__m256d; 2];

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn low_nibbles(bytes: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn high_nibbles(bytes: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn splat_group(x: &Block, group: usize) -> __m256i {
        unsafe { _mm256_set1_epi32(x.quants.as_ptr().cast::<i32>().add(group).read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn no_sum() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    /// A whole block adds up in 16 bits: 16 products of at most 15 * 128 are below 2^15.
    #[inline(always)]
    unsafe fn add_nibbles(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x)) }
    }

    #[inline(always)]
    unsafe fn join_nibbles(sum: __m256i) -> __m256i {
        unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) }
    }

    const RAISE: f32 = 0.0;

    /// |w| * (x with the sign of w): two products of at most 128 * 127 fit 16 bits.
    #[inline(always)]
    unsafe fn add_signed(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn to_floats(sum: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(sum) }
    }

    #[inline(always)]
    unsafe fn pin_sum(sum: __m256i) -> __m256i {
        unsafe { pin_sum(sum) }
    }

    #[inline(always)]
    unsafe fn pin(value: __m256) -> __m256 {
        unsafe { pin(value) }
    }

    #[inline(always)]
    unsafe fn no_doubles() -> [__m256d; 2] {
        unsafe { [_mm256_setzero_pd(); 2] }
    }

    #[inline(always)]
    unsafe fn add_wide([low, high]: [__m256d; 2], value: __m256) -> [__m256d; 2] {
        unsafe {
            let (first, second) = (_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
            [_mm256_add_pd(low, _mm256_cvtps_pd(first)), _mm256_add_pd(high, _mm256_cvtps_pd(second))]
        }
    }

    #[inline(always)]
    unsafe fn narrow([low, high]: [__m256d; 2]) -> __m256 {
        unsafe { _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)) }
    }

    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, [low, high]: [__m256d; 2]) {
        unsafe {
            _mm256_storeu_pd(to, low);
            _mm256_storeu_pd(to.add(4), high);
        }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m256 {
        unsafe { _mm256_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

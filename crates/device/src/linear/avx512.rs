//! Sixteen lanes: AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::activations::Block;
use super::lanes::Lanes;

#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// An empty instruction that claims to change its operand.
#[inline]
#[target_feature(enable = "avx512f")]
fn pin_sum(mut value: __m512i) -> __m512i {
    // SAFETY: no instruction, no memory, no flags.
    unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// An empty instruction that claims to change its operand.
#[inline]
#[target_feature(enable = "avx512f")]
fn pin(mut value: __m512) -> __m512 {
    // SAFETY: no instruction, no memory, no flags.
    unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each passes on the trait's contract: features and pointers"
)]
impl Lanes for Avx512 {
    const LANES: usize = 16;
    type Bytes = __m512i;
    type Sum = __m512i;
    type Floats = __m512;
    type Doubles = [__m512d; 2];

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn low_nibbles(bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn high_nibbles(bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn splat_group(x: &Block, group: usize) -> __m512i {
        unsafe { _mm512_set1_epi32(x.quants.as_ptr().cast::<i32>().add(group).read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn no_sum() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn add_nibbles(sum: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, weights, x) }
    }

    #[inline(always)]
    unsafe fn join_nibbles(sum: __m512i) -> __m512i {
        sum
    }

    const RAISE: f32 = 128.0;

    /// The instruction wants unsigned weights: w + 128 is w with its top bit flipped.
    #[inline(always)]
    unsafe fn add_signed(sum: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, _mm512_xor_si512(weights, _mm512_set1_epi8(-128)), x) }
    }

    #[inline(always)]
    unsafe fn to_floats(sum: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sum) }
    }

    #[inline(always)]
    unsafe fn pin_sum(sum: __m512i) -> __m512i {
        unsafe { pin_sum(sum) }
    }

    #[inline(always)]
    unsafe fn pin(value: __m512) -> __m512 {
        unsafe { pin(value) }
    }

    #[inline(always)]
    unsafe fn no_doubles() -> [__m512d; 2] {
        unsafe { [_mm512_setzero_pd(); 2] }
    }

    #[inline(always)]
    unsafe fn add_wide([low, high]: [__m512d; 2], value: __m512) -> [__m512d; 2] {
        unsafe {
            let (first, second) = (_mm512_castps512_ps256(value), _mm512_extractf32x8_ps::<1>(value));
            [_mm512_add_pd(low, _mm512_cvtps_pd(first)), _mm512_add_pd(high, _mm512_cvtps_pd(second))]
        }
    }

    #[inline(always)]
    unsafe fn narrow([low, high]: [__m512d; 2]) -> __m512 {
        unsafe {
            let low = _mm512_castps256_ps512(_mm512_cvtpd_ps(low));
            _mm512_insertf32x8::<1>(low, _mm512_cvtpd_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn store_wide(to: *mut f64, [low, high]: [__m512d; 2]) {
        unsafe {
            _mm512_storeu_pd(to, low);
            _mm512_storeu_pd(to.add(8), high);
        }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m512 {
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

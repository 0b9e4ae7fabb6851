//! The int8 dot product peak with the best instruction this CPU has outside of tiles.

use crate::cpu::Features;

/// Independent chains of sums.
const CHAINS: usize = 12;
const ROUNDS: usize = 20_000;

/// Operations of one [`run`]: a multiplication and an addition per byte.
pub(super) fn operations(features: &Features) -> f64 {
    let bytes = if features.avx512_vnni { 64 } else { 32 };
    (2 * bytes * CHAINS * ROUNDS) as f64
}

/// Runs [`operations`].
pub(super) fn run(features: &Features) {
    #[cfg(target_arch = "x86_64")]
    {
        if features.avx512_vnni {
            // SAFETY: the feature was detected.
            unsafe { x86::avx512_vnni() };
            return;
        }
        if features.avx_vnni {
            // SAFETY: the feature was detected.
            unsafe { x86::avx_vnni() };
            return;
        }
        if features.avx2 {
            // SAFETY: the feature was detected.
            unsafe { x86::avx2() };
            return;
        }
    }
    portable(features);
}

/// Plain Rust, one lane per byte of a 32-byte vector.
fn portable(_: &Features) {
    let (a, b) = std::hint::black_box(([3_i8; 32], [5_i8; 32]));
    let mut sums = [[0_i32; 32]; CHAINS];
    for _ in 0..ROUNDS {
        for sums in &mut sums {
            for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(&b)) {
                *sum = sum.wrapping_add(i32::from(*a) * i32::from(*b));
            }
        }
        std::hint::black_box(&mut sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, ROUNDS};

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn avx512_vnni() {
        let (a, b) = black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(5)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn avx_vnni() {
        let (a, b) = black_box((_mm256_set1_epi8(3), _mm256_set1_epi8(5)));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// Hides a value from the optimiser, in its register: or the constant product would be moved out of the loop.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn opaque(mut x: __m256i) -> __m256i {
        // SAFETY: no instruction at all. Not `pure`, which would let equal blocks be merged and moved.
        unsafe { asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
        x
    }

    /// Without dot product instructions: multiply bytes, add pairs, widen to i32, add. As in a real product, two
    /// multiplications share one widening.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2() {
        let (a, b) = black_box((_mm256_set1_epi8(3), _mm256_set1_epi8(5)));
        let ones = black_box(_mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..ROUNDS / 2 {
            for sum in &mut sums {
                let a = opaque(a);
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, b), _mm256_maddubs_epi16(b, a));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        black_box(sums);
    }
}

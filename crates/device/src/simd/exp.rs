//! The exponential function, shared by every kernel that needs it.

use super::Simd;

/// Below this 2^x is taken as 0, so that exponents stay in the range of normal numbers.
const LEAST_EXPONENT: f32 = -125.0;
/// From here on 2^x is infinite (half a step early: the power of two is rounded first).
const LARGEST_EXPONENT: f32 = 128.0;
/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits of the mantissa.
const ROUNDER: f32 = 12_582_912.0;

/// (2^f - 1) / f on [-0.5, 0.5], interpolated at Chebyshev nodes; relative error of 2^f below 5.1e-9 before rounding.
const POLYNOMIAL: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_083, 0.001_339_086_3, 0.000_154_531_63];

/// 2^x per lane. Relative error at most 2.5e-7 (measured over the whole range by the tests); exactly 1 at 0, exactly
/// 0 below -125 and for -inf, inf from 127.5 on; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    // The order of the operands keeps NaN.
    let x = s.min(s.splat(LARGEST_EXPONENT), x);
    let clamped = s.max(s.splat(LEAST_EXPONENT - 1.0), x);
    let rounder = s.splat(ROUNDER);
    let biased = s.add(clamped, rounder);
    let f = s.sub(clamped, s.sub(biased, rounder));
    let mut p = s.splat(POLYNOMIAL[5]);
    p = s.fma(p, f, s.splat(POLYNOMIAL[4]));
    p = s.fma(p, f, s.splat(POLYNOMIAL[3]));
    p = s.fma(p, f, s.splat(POLYNOMIAL[2]));
    p = s.fma(p, f, s.splat(POLYNOMIAL[1]));
    p = s.fma(p, f, s.splat(POLYNOMIAL[0]));
    p = s.fma(p, f, s.splat(1.0));
    // A product, not an addition to the exponent of `p`: that could turn a NaN into a number.
    let power = s.add_to_exponent(s.splat(1.0), biased);
    s.zero_below(x, s.splat(LEAST_EXPONENT), s.mul(p, power))
}

/// 1 / (1 + e^-x) per lane. Absolute error at most 2e-7.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp2(s, s.mul(x, s.splat(-std::f32::consts::LOG2_E)));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

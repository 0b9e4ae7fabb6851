//! Eight lanes in plain Rust, for every target; the compiler makes of it what the target has.

use std::array::from_fn;

use half::{bf16, f16};

use super::{Kernel, Simd};

#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;
type V = [f32; LANES];

/// `a * b + c`: rounded once where that is one instruction, twice where it would be a library call.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
}

impl Simd for Portable {
    type V = V;
    const LANES: usize = LANES;
    const QUERIES: usize = 2;

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        from_fn(|i| multiply_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn zero_below(self, x: V, least: V, then: V) -> V {
        from_fn(|i| if x[i] < least[i] { 0.0 } else { then[i] })
    }

    #[inline(always)]
    fn add_to_exponent(self, x: V, n: V) -> V {
        from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    }

    #[inline(always)]
    fn sum(self, x: V) -> f32 {
        ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))
    }

    #[inline(always)]
    fn largest(self, x: V) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn first(self, x: V) -> f32 {
        x[0]
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> V {
        // SAFETY: the caller guarantees LANES readable items.
        unsafe { from.cast::<V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> V {
        // SAFETY: the caller guarantees LANES readable items.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> V {
        // SAFETY: the caller guarantees LANES readable items.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| bf16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn store(self, x: V, to: *mut f32) {
        // SAFETY: the caller guarantees LANES writable items.
        unsafe { to.cast::<V>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn store_sums(self, x: [V; 4], to: [*mut f32; 2]) {
        let [a, b, c, d] = x.map(|x| self.sum(x));
        // SAFETY: the caller guarantees 2 writable items at each.
        unsafe {
            to[0].cast::<[f32; 2]>().write_unaligned([a, b]);
            to[1].cast::<[f32; 2]>().write_unaligned([c, d]);
        }
    }
}

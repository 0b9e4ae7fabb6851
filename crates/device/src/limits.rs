//! What this machine can do at most, measured: a bench reports its own results as shares of these.
//!
//! Owns the measuring loops. Takes its time from the caller's clock. Never used while serving.

use std::time::Duration;

use hawser_common::clock::Clock;

use crate::cpu::{Features, Isa};
use crate::error::DeviceError;
use crate::memory::HugeVec;
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::{Threads, split};

mod int8;

/// Far larger than a last-level cache.
const LARGE_BYTES: usize = 512 << 20;
/// Fits the last-level cache of a server CPU, and no cache before it.
const CACHED_BYTES: usize = 8 << 20;
/// Each figure is the best of several runs of at least this long.
const LEAST_RUN: Duration = Duration::from_millis(20);
const RUNS: usize = 5;

/// The limits of one machine with one number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub threads: usize,
    pub isa: Isa,
    /// Reading memory that no cache holds, in 10^9 bytes per second.
    pub memory_gb_per_s: f64,
    /// Reading 8 MiB again and again, in 10^9 bytes per second.
    pub cached_gb_per_s: f64,
    /// f32 multiply-adds, counted as two operations each, in 10^9 per second.
    pub f32_gflop_per_s: f64,
    /// int8 multiply-adds, counted as two operations each, in 10^9 per second.
    pub int8_gop_per_s: f64,
}

/// Measures for about a second, all threads at once.
///
/// # Errors
/// [`DeviceError`] if there is no memory for the buffer to read, 512 MiB.
pub fn measure(threads: &Threads, clock: &Clock) -> Result<Limits, DeviceError> {
    let isa = Isa::best();
    let mut buffer = HugeVec::<f32>::zeroed(LARGE_BYTES / size_of::<f32>())?;
    // Touched, so that it is memory and not one page of zeros.
    buffer.fill(1.0);
    let cached = &buffer[..CACHED_BYTES / size_of::<f32>()];
    let read = |buffer: &[f32]| {
        let once = || {
            threads.run(&|index| {
                let part = &buffer[split(buffer.len(), threads.count(), index, 1 << 10)];
                std::hint::black_box(dispatch(isa, Read(part)));
            });
        };
        size_of_val(buffer) as f64 * rate(clock, &once)
    };
    let compute = |operations: f64, kernel: &(dyn Fn() + Sync)| {
        operations * threads.count() as f64 * rate(clock, &|| threads.run(&|_| kernel()))
    };
    Ok(Limits {
        threads: threads.count(),
        isa,
        memory_gb_per_s: read(&buffer) / 1e9,
        cached_gb_per_s: read(cached) / 1e9,
        f32_gflop_per_s: compute(dispatch(isa, Lanes) * MULTIPLY_ADDS, &|| {
            std::hint::black_box(dispatch(isa, MultiplyAdd(std::hint::black_box(1.0))));
        }) / 1e9,
        int8_gop_per_s: compute(int8::operations(Features::detected()), &|| int8::run(Features::detected()))
            / 1e9,
    })
}

/// Calls per second: the best of several runs.
fn rate(clock: &Clock, call: &dyn Fn()) -> f64 {
    call();
    let mut best = 0.0;
    for _ in 0..RUNS {
        let start = clock.now();
        let mut calls = 0.0;
        loop {
            call();
            calls += 1.0;
            let elapsed = clock.now().since(start);
            if elapsed >= LEAST_RUN {
                best = f64::max(best, calls / elapsed.as_secs_f64());
                break;
            }
        }
    }
    best
}

/// Sums all numbers: eight loads in flight, one addition each.
struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(0.0); 8];
        for part in self.0.chunks_exact(8 * S::LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the part has eight vectors.
                *sum = s.add(*sum, unsafe { s.load(part.as_ptr().add(i * S::LANES)) });
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

/// Lanes of a vector.
struct Lanes;

impl Kernel for Lanes {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        S::LANES as f64
    }
}

/// Operations per lane of [`MultiplyAdd`].
const MULTIPLY_ADDS: f64 = (CHAINS * ROUNDS * 2) as f64;
/// Independent chains: as many as hide the latency of a multiply-add on two units.
const CHAINS: usize = 12;
const ROUNDS: usize = 20_000;

/// Multiply-adds that depend on nothing but their own chain.
struct MultiplyAdd(f32);

impl Kernel for MultiplyAdd {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let factor = s.splat(self.0);
        let mut sums = [factor; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.fma(*sum, factor, factor);
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    #[allow(clippy::float_cmp, reason = "a rate on a clock that is moved by hand is exact")]
    fn rates_are_calls_per_second_of_the_callers_clock() {
        let (clock, hand) = Clock::manual();
        let found = rate(&clock, &|| hand.advance(Duration::from_millis(8)));
        assert_eq!(found, 125.0);
    }

    #[test]
    fn kernels_compute_what_they_claim() {
        for isa in Isa::available() {
            assert_eq!(dispatch(isa, Read(&vec![0.5; 1 << 12])), 2048.0, "{isa:?}");
            // 1 + 1 per round, in every lane of every chain.
            let expected = (ROUNDS + 1) as f32 * CHAINS as f32 * dispatch(isa, Lanes) as f32;
            assert_eq!(dispatch(isa, MultiplyAdd(1.0)), expected, "{isa:?}");
        }
        let features = Features::detected();
        assert!(int8::operations(features) > 0.0);
        int8::run(features);
    }

    #[test]
    fn all_limits_are_measured() {
        let threads = Threads::new(NonZeroUsize::MIN);
        let limits = measure(&threads, &Clock::system()).unwrap();
        println!("{limits:?}");
        for limit in
            [limits.memory_gb_per_s, limits.cached_gb_per_s, limits.f32_gflop_per_s, limits.int8_gop_per_s]
        {
            assert!(limit.is_finite() && limit > 0.0);
        }
    }
}

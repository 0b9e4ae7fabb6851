//! Root mean square norm: y = x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich 2019).

use super::{isa, share};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::{SharedMut, Threads};

/// Normalises each row of `x` to `out`, both `[m][n]`; `weight`: `[n]`.
///
/// # Panics
/// If the shapes do not fit.
pub fn rms_norm(threads: &Threads, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one output per number");
    let n = row_len(x.len(), weight);
    let rows = out.len() / n;
    let out = SharedMut::new(out);
    share(threads, rows, n, &|part| {
        let range = part.start * n..part.end * n;
        // SAFETY: parts are disjoint.
        let out = unsafe { out.slice(range.clone()) };
        for (x, out) in x[range].chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            out.copy_from_slice(x);
            dispatch(isa(), Norm { rows: out, weight, eps });
        }
    });
}

/// Normalises each head in place; `x`: `[m][heads][D]`, `weight`: `[D]`.
///
/// # Panics
/// If the shapes do not fit.
pub fn rms_norm_heads(threads: &Threads, x: &mut [f32], weight: &[f32], eps: f32) {
    let n = row_len(x.len(), weight);
    let rows = x.len() / n;
    let x = SharedMut::new(x);
    share(threads, rows, n, &|part| {
        // SAFETY: parts are disjoint.
        let rows = unsafe { x.slice(part.start * n..part.end * n) };
        dispatch(isa(), Norm { rows, weight, eps });
    });
}

fn row_len(len: usize, weight: &[f32]) -> usize {
    let n = weight.len();
    assert!(n > 0 && len.is_multiple_of(n), "{len} numbers in rows of {n}");
    n
}

/// Normalises rows in place.
pub(super) struct Norm<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.weight.len();
        for row in self.rows.chunks_exact_mut(n) {
            let scale = 1.0 / (sum_of_squares(s, row) / n as f32 + self.eps).sqrt();
            let vectors = n - n % S::LANES;
            for i in (0..vectors).step_by(S::LANES) {
                // SAFETY: i + LANES is at most n, the length of both.
                unsafe {
                    let x = s.mul(s.load(row.as_ptr().add(i)), s.splat(scale));
                    s.store(s.mul(x, s.load(self.weight.as_ptr().add(i))), row.as_mut_ptr().add(i));
                }
            }
            for (x, weight) in row[vectors..].iter_mut().zip(&self.weight[vectors..]) {
                *x = *x * scale * weight;
            }
        }
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut parts = row.chunks_exact(2 * S::LANES);
    let mut sums = [s.splat(0.0); 2];
    for part in &mut parts {
        // SAFETY: the part has 2 LANES numbers.
        let (a, b) = unsafe { (s.load(part.as_ptr()), s.load(part.as_ptr().add(S::LANES))) };
        sums = [s.fma(a, a, sums[0]), s.fma(b, b, sums[1])];
    }
    let rest: f32 = parts.remainder().iter().map(|x| x * x).sum();
    s.sum(s.add(sums[0], sums[1])) + rest
}

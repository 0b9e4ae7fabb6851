//! Rotary position embedding, half-split: number `i` of a head is rotated with number `i + rotary_dim / 2` (Su et al.
//! 2021, in the layout of GPT-NeoX).

use hawser_common::Position;

use super::{isa, share};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::{SharedMut, Threads};

/// How fast each pair of numbers turns with the position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    frequencies: Vec<f64>,
    attention_factor: f64,
}

impl Rope {
    /// `inverse_frequencies`: radians per position, `[rotary_dim / 2]`. Cosines and sines are multiplied by
    /// `attention_factor` (1, but for YaRN).
    #[must_use]
    pub fn new(inverse_frequencies: &[f64], attention_factor: f64) -> Self {
        Self { frequencies: inverse_frequencies.to_vec(), attention_factor }
    }

    /// Numbers of a head that are rotated; the others keep their value.
    #[must_use]
    pub fn rotary_dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Computes the angles of a batch's positions, once for all layers of a step. Angles are f64 products: what f32
    /// loses of one grows with the position, differs between a query and a key, and shows in sharp logits.
    pub fn phases(&self, positions: &[Position], into: &mut Phases) {
        into.half = self.frequencies.len();
        into.cos.clear();
        into.sin.clear();
        for position in positions {
            for frequency in &self.frequencies {
                let (sin, cos) = (f64::from(position.0) * frequency).sin_cos();
                into.cos.push((cos * self.attention_factor) as f32);
                into.sin.push((sin * self.attention_factor) as f32);
            }
        }
    }
}

/// Cosines and sines of a batch: `[rows][rotary_dim / 2]`. Kept between steps, so that a step allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Phases {
    /// Rotates queries or keys in place; `x`: `[rows][heads][D]`, the rows being those of [`Rope::phases`].
    ///
    /// # Panics
    /// If the shapes do not fit, or D is smaller than the rotary dimension.
    pub fn rotate(&self, threads: &Threads, x: &mut [f32], heads: usize) {
        if self.half == 0 || x.is_empty() {
            return;
        }
        let rows = self.cos.len() / self.half;
        assert!(rows > 0 && heads > 0 && x.len().is_multiple_of(rows * heads), "{} numbers", x.len());
        let head_dim = x.len() / (rows * heads);
        assert!(head_dim >= 2 * self.half, "heads of {head_dim} rotate at most as many numbers");
        let x = SharedMut::new(x);
        share(threads, rows, heads * head_dim, &|part| {
            for row in part {
                // SAFETY: each row is in one part.
                let heads = unsafe { x.slice(row * heads * head_dim..(row + 1) * heads * head_dim) };
                let angles = row * self.half..(row + 1) * self.half;
                let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
                dispatch(isa(), Rotate { heads, head_dim, cos, sin });
            }
        });
    }
}

/// Rotates the heads of one row.
pub(super) struct Rotate<'a> {
    pub(super) heads: &'a mut [f32],
    pub(super) head_dim: usize,
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { heads, head_dim, cos, sin } = self;
        let half = cos.len();
        assert!(sin.len() == half && 2 * half <= head_dim, "a sine per cosine");
        let vectors = half - half % S::LANES;
        for head in heads.chunks_exact_mut(head_dim) {
            let (low, high) = head[..2 * half].split_at_mut(half);
            for i in (0..vectors).step_by(S::LANES) {
                // SAFETY: i + LANES is at most the length of all four.
                unsafe {
                    let (c, n) = (s.load(cos.as_ptr().add(i)), s.load(sin.as_ptr().add(i)));
                    let (a, b) = (s.load(low.as_ptr().add(i)), s.load(high.as_ptr().add(i)));
                    s.store(s.sub(s.mul(a, c), s.mul(b, n)), low.as_mut_ptr().add(i));
                    s.store(s.add(s.mul(b, c), s.mul(a, n)), high.as_mut_ptr().add(i));
                }
            }
            for i in vectors..half {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

//! Arithmetic between the products, row by row.

use hawser_common::Position;

/// Sines and cosines of the rows of a step, `[rows][head_dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Turns {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Turns {
    /// Angles are formed in f64, so that far positions lose nothing.
    pub(crate) fn new(frequencies: &[f64], factor: f64, positions: &[Position]) -> Self {
        let angles =
            positions.iter().flat_map(|position| frequencies.iter().map(|f| f * f64::from(position.0)));
        let turn = |angle: f64| ((angle.sin() * factor) as f32, (angle.cos() * factor) as f32);
        let (sin, cos) = angles.map(turn).unzip();
        Self { pairs: frequencies.len(), cos, sin }
    }

    /// Turns every head of `heads` by the phase of row `row`; pairs are (i, i + d/2).
    pub(crate) fn rotate(&self, row: usize, head_dim: usize, heads: &mut [f32]) {
        let (cos, sin) =
            (&self.cos[row * self.pairs..][..self.pairs], &self.sin[row * self.pairs..][..self.pairs]);
        for head in heads.chunks_exact_mut(head_dim) {
            let (low, high) = head.split_at_mut(self.pairs);
            for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / weight.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

pub(crate) fn add_bias(x: &mut [f32], bias: &[f32]) {
    x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
}

pub(crate) fn silu_mul(gate_up: &[f32], ffn: usize, out: &mut [f32]) {
    for (gate_up, out) in gate_up.chunks_exact(2 * ffn).zip(out.chunks_exact_mut(ffn)) {
        let (gate, up) = gate_up.split_at(ffn);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + (-gate).exp()) * up;
        }
    }
}

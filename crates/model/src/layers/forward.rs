//! The arithmetic of a step: embedding, layers, the final norm.

use hawser_common::{Position, SlotId};
use hawser_device::attention::{AttendCall, Span, attend};
use hawser_device::cpu::Isa;
use hawser_device::kv::KvRows;
use hawser_device::linear::Write;
use hawser_device::threads::Threads;

use super::elementwise::{Turns, add_bias, rms_norm, silu_mul};
use super::{Buffers, Layer, Model};
use crate::config::ModelConfig;

/// One step on its way through the layers. `buffers.stream` holds the residual stream of its `rows` rows.
pub(crate) struct Pass<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) threads: &'a Threads,
    pub(crate) kv: &'a mut KvRows,
    /// Where each row's key and value go.
    pub(crate) slots: &'a [SlotId],
    /// What each row attends to.
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) turns: Turns,
    pub(crate) rows: usize,
    pub(crate) buffers: &'a mut Buffers,
}

impl Model {
    /// Looks up the embedding of each token; `stream` is `[tokens][hidden]`.
    pub(crate) fn embed(&self, tokens: &[u32], stream: &mut [f32]) -> candle_core::Result<()> {
        for (token, row) in tokens.iter().zip(stream.chunks_exact_mut(self.config.hidden)) {
            self.embedding.row(*token as usize, row)?;
        }
        Ok(())
    }

    /// Sines and cosines of each row's position.
    pub(crate) fn turns(&self, positions: &[Position]) -> Turns {
        Turns::new(&self.frequencies, self.config.rope.attention_factor(), positions)
    }

    pub(crate) fn run_layers(&self, pass: &mut Pass<'_>) -> candle_core::Result<()> {
        self.layers.iter().enumerate().try_for_each(|(index, layer)| layer.forward(index, pass))
    }

    /// Norms the `wanted` rows of the stream for the head; `out` is `[wanted][hidden]`.
    pub(crate) fn norm_rows(&self, stream: &[f32], wanted: &[usize], out: &mut [f32]) {
        let hidden = self.config.hidden;
        for (row, out) in wanted.iter().zip(out.chunks_exact_mut(hidden)) {
            rms_norm(&stream[row * hidden..][..hidden], &self.output_norm, self.config.rms_eps, out);
        }
    }
}

impl Layer {
    /// Adds the layer's attention and feed-forward to the stream, and writes the rows' keys and values.
    fn forward(&self, index: usize, pass: &mut Pass<'_>) -> candle_core::Result<()> {
        let (threads, rows, eps) = (pass.threads, pass.rows, pass.config.rms_eps);
        let Buffers { stream, normed, qkv, linear, .. } = &mut *pass.buffers;
        let normed = normed.first(rows);
        rms_norm(stream.first(rows), &self.attention_norm, eps, normed);
        self.qkv.forward(threads, normed, qkv.first(rows), Write::Store, linear)?;
        self.attention(index, pass);
        let Buffers { stream, normed, attended, gate_up, gated, linear, .. } = &mut *pass.buffers;
        let (stream, normed) = (stream.first(rows), normed.first(rows));
        self.output.forward(threads, attended.first(rows), stream, Write::Add, linear)?;
        rms_norm(stream, &self.ffn_norm, eps, normed);
        let (gate_up, gated) = (gate_up.first(rows), gated.first(rows));
        self.gate_up.forward(threads, normed, gate_up, Write::Store, linear)?;
        silu_mul(gate_up, pass.config.ffn, gated);
        self.down.forward(threads, gated, stream, Write::Add, linear)
    }

    /// From `qkv` to `attended`: biases, head norms, RoPE, the write of keys and values, attention.
    fn attention(&self, index: usize, pass: &mut Pass<'_>) {
        let ModelConfig { head_dim, heads, .. } = *pass.config;
        let (q, kv, eps) = (pass.config.query_width(), pass.config.kv_width(), pass.config.rms_eps);
        let Buffers { qkv, query, key, value, attended, attend: scratch, .. } = &mut *pass.buffers;
        let rows = pass.rows;
        let (query, key, value) = (query.first(rows), key.first(rows), value.first(rows));
        for (row, qkv) in qkv.first(rows).chunks_exact_mut(q + 2 * kv).enumerate() {
            if let Some(bias) = &self.qkv_bias {
                add_bias(qkv, bias);
            }
            let (query, key) = (&mut query[row * q..][..q], &mut key[row * kv..][..kv]);
            match &self.head_norms {
                Some(norms) => {
                    rms_norm(&qkv[..q], &norms.query, eps, query);
                    rms_norm(&qkv[q..q + kv], &norms.key, eps, key);
                }
                None => {
                    query.copy_from_slice(&qkv[..q]);
                    key.copy_from_slice(&qkv[q..q + kv]);
                }
            }
            pass.turns.rotate(row, head_dim, query);
            pass.turns.rotate(row, head_dim, key);
            value[row * kv..][..kv].copy_from_slice(&qkv[q + kv..]);
        }
        pass.kv.write(index, pass.slots, key, value);
        let call =
            AttendCall { kv: pass.kv, layer: index, spans: pass.spans, q: query, heads, isa: Isa::best() };
        attend(pass.threads, &call, attended.first(rows), scratch);
    }
}

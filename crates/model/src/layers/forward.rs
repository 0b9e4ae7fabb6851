//! The arithmetic of a step: embedding, layers, the final norm.

use hawser_common::{Position, SlotId};
use hawser_device::attention::{AttendCall, Span, attend};
use hawser_device::collective::{CollectiveError, Values};
use hawser_device::cpu::Isa;
use hawser_device::kv::KvRows;
use hawser_device::linear::Write;
use hawser_device::ops::{Phases, rms_norm, rms_norm_heads, silu_mul};
use hawser_device::threads::Threads;
use thiserror::Error;

use super::linear::{Linear, LinearScratch};
use super::{Buffers, Layer, Model};
use crate::config::ModelConfig;
use crate::shard::{Group, Shard};

/// Why the layers could not be run.
#[derive(Debug, Error)]
pub(crate) enum ForwardError {
    #[error("a matrix product failed: {0}")]
    Product(#[from] candle_core::Error),
    #[error(transparent)]
    Group(#[from] CollectiveError),
}

/// Sees what retention needs of a step.
pub(crate) trait Observer {
    /// A layer's queries after RoPE, `[rows][Hq][D]` of the heads that are here; its keys are written already.
    fn queries(&mut self, layer: usize, query: &[f32], kv: &KvRows, threads: &Threads);
}

/// One step on its way through the layers. `buffers.stream` holds the residual stream of its `rows` rows.
pub(crate) struct Pass<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) threads: &'a Threads,
    pub(crate) kv: &'a mut KvRows,
    /// Where each row's key and value go.
    pub(crate) slots: &'a [SlotId],
    /// What each row attends to.
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) rows: usize,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) group: &'a mut Group,
}

impl Model {
    /// Looks up the embedding of each token; `stream` is `[tokens][hidden]`. Tokens of other ranks are zero here, and
    /// what they are there once all ranks are added.
    pub(crate) fn embed(
        &self,
        tokens: &[u32],
        stream: &mut [f32],
        group: &mut Group,
    ) -> Result<(), ForwardError> {
        let vocab = &self.shard.vocab;
        for (token, row) in tokens.iter().zip(stream.chunks_exact_mut(self.config.hidden)) {
            let token = *token as usize;
            if vocab.contains(&token) {
                self.embedding.row(token - vocab.start, row)?;
            } else {
                row.fill(0.0);
            }
        }
        Ok(group.sum(Values::F32(stream))?)
    }

    /// Prepares the rotation of each row's position.
    pub(crate) fn phases(&self, positions: &[Position], phases: &mut Phases) {
        self.rope.phases(positions, phases);
    }

    pub(crate) fn run_layers(&self, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let shard = &self.shard;
        self.layers.iter().enumerate().try_for_each(|(index, layer)| layer.forward(index, shard, pass))
    }

    /// Norms the `wanted` rows of the stream for the head; `out` is `[wanted][hidden]`.
    pub(crate) fn norm_rows(&self, threads: &Threads, stream: &[f32], wanted: &[usize], out: &mut [f32]) {
        let hidden = self.config.hidden;
        for (row, out) in wanted.iter().zip(out.chunks_exact_mut(hidden)) {
            let row = &stream[row * hidden..][..hidden];
            rms_norm(threads, row, &self.output_norm, self.config.rms_eps, out);
        }
    }
}

impl Layer {
    /// Adds the layer's attention and feed-forward to the stream, and writes the rows' keys and values.
    ///
    /// The attention output and down are cut by columns: each rank's product is a part of a sum, and all ranks add that
    /// sum to the stream, which is the same on each.
    fn forward(&self, index: usize, shard: &Shard, pass: &mut Pass<'_>) -> Result<(), ForwardError> {
        let (threads, rows, eps) = (pass.threads, pass.rows, pass.config.rms_eps);
        let Buffers { stream, normed, qkv, linear, .. } = &mut *pass.buffers;
        let normed = normed.first(rows);
        rms_norm(threads, stream.first(rows), &self.attention_norm, eps, normed);
        self.qkv.forward(threads, normed, qkv.first(rows), Write::Store, linear)?;
        self.attention(index, shard, pass);
        let Buffers { stream, sums, normed, attended, gate_up, gated, linear, .. } = &mut *pass.buffers;
        let (stream, normed) = (stream.first(rows), normed.first(rows));
        let mut add = |product: &Linear, x: &[f32], stream: &mut [f32], linear: &mut LinearScratch| {
            if pass.group.is_alone() {
                return Ok(product.forward(threads, x, stream, Write::Add, linear)?);
            }
            let sums = sums.first(rows);
            product.sums(threads, x, sums, linear)?;
            pass.group.sum(Values::F64(sums))?;
            stream.iter_mut().zip(sums).for_each(|(value, sum)| *value += *sum as f32);
            Ok::<_, ForwardError>(())
        };
        add(&self.output, attended.first(rows), stream, linear)?;
        rms_norm(threads, stream, &self.ffn_norm, eps, normed);
        let (gate_up, gated) = (gate_up.first(rows), gated.first(rows));
        self.gate_up.forward(threads, normed, gate_up, Write::Store, linear)?;
        silu_mul(threads, gate_up, shard.ffn.len(), gated);
        add(&self.down, gated, stream, linear)
    }

    /// From `qkv` to `attended`: biases, head norms, RoPE, the write of keys and values, attention.
    fn attention(&self, index: usize, shard: &Shard, pass: &mut Pass<'_>) {
        let (threads, rows, config) = (pass.threads, pass.rows, pass.config);
        let heads = shard.heads.query.len();
        let Buffers { qkv, query, key, value, attended, phases, attend: scratch, .. } = &mut *pass.buffers;
        let (query, key, value) = (query.first(rows), key.first(rows), value.first(rows));
        split_rows(qkv.first(rows), self.qkv_bias.as_deref(), [&mut *query, &mut *key, &mut *value], rows);
        if let Some(norms) = &self.head_norms {
            rms_norm_heads(threads, query, &norms.query, config.rms_eps);
            rms_norm_heads(threads, key, &norms.key, config.rms_eps);
        }
        phases.rotate(threads, query, heads);
        phases.rotate(threads, key, shard.heads.kv.len());
        pass.kv.write(index, pass.slots, key, value);
        pass.observer.queries(index, query, pass.kv, threads);
        let (spans, isa) = (pass.spans, Isa::best());
        let heads = shard.heads.readers();
        let call = AttendCall { kv: pass.kv, layer: index, spans, q: query, heads, isa };
        attend(threads, &call, attended.first(rows), scratch);
    }
}

/// Takes the rows of q, k and v, beside each other in `fused`, apart, and adds their biases.
fn split_rows(fused: &mut [f32], bias: Option<&[f32]>, parts: [&mut [f32]; 3], rows: usize) {
    let width = fused.len() / rows;
    if let Some(bias) = bias {
        for row in fused.chunks_exact_mut(width) {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
    let mut from = 0;
    for part in parts {
        let part_width = part.len() / rows;
        for (row, part) in fused.chunks_exact(width).zip(part.chunks_exact_mut(part_width)) {
            part.copy_from_slice(&row[from..from + part_width]);
        }
        from += part_width;
    }
}

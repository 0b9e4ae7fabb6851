//! The activations of a step: plain f32 rows that are kept between steps (docs/adr/0004-activations.md).

use hawser_device::attention::AttendScratch;
use hawser_device::ops::Phases;

use super::linear::LinearScratch;
use crate::config::ModelConfig;
use crate::shard::Shard;

/// Rows of one width. Grows to the largest step and stays.
#[derive(Debug)]
pub(crate) struct Rows<T = f32> {
    width: usize,
    values: Vec<T>,
}

impl<T: Copy + Default> Rows<T> {
    fn new(width: usize) -> Self {
        Self { width, values: Vec::new() }
    }

    /// The first `count` rows. What they hold is left over from the last use.
    pub(crate) fn first(&mut self, count: usize) -> &mut [T] {
        let length = count * self.width;
        if self.values.len() < length {
            self.values.resize(length, T::default());
        }
        &mut self.values[..length]
    }
}

/// Everything a step writes that is not a KV row or a logit.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The residual stream, `[rows][hidden]`.
    pub(crate) stream: Rows,
    /// Of a group of several, this rank's part of what is added to it, `[rows][hidden]`, then that of all.
    pub(crate) sums: Rows<f64>,
    /// The input of a product, `[rows][hidden]`.
    pub(crate) normed: Rows,
    /// q, k and v of a row beside each other.
    pub(crate) qkv: Rows,
    pub(crate) query: Rows,
    pub(crate) key: Rows,
    pub(crate) value: Rows,
    /// What attention gives, `[rows][heads][head_dim]`.
    pub(crate) attended: Rows,
    /// gate and up of a row beside each other.
    pub(crate) gate_up: Rows,
    /// silu(gate) · up, `[rows][ffn]`.
    pub(crate) gated: Rows,
    /// Sines and cosines of the rows' positions.
    pub(crate) phases: Phases,
    /// Of a group of several, this rank's logits `[rows][its vocabulary]`, and on the leader those of all ranks, one
    /// rank's behind the other's.
    pub(crate) logits: Rows,
    pub(crate) gathered: Rows,
    pub(crate) linear: LinearScratch,
    pub(crate) attend: AttendScratch,
}

impl Buffers {
    pub(crate) fn new(config: &ModelConfig, shard: &Shard) -> Self {
        let (q, kv) = (shard.heads.query.len() * config.head_dim, shard.heads.kv.len() * config.head_dim);
        Self {
            stream: Rows::new(config.hidden),
            sums: Rows::new(config.hidden),
            normed: Rows::new(config.hidden),
            qkv: Rows::new(q + 2 * kv),
            query: Rows::new(q),
            key: Rows::new(kv),
            value: Rows::new(kv),
            attended: Rows::new(q),
            gate_up: Rows::new(2 * shard.ffn.len()),
            gated: Rows::new(shard.ffn.len()),
            phases: Phases::default(),
            logits: Rows::new(shard.vocab.len()),
            gathered: Rows::new(config.vocab),
            linear: LinearScratch::default(),
            attend: AttendScratch::default(),
        }
    }
}

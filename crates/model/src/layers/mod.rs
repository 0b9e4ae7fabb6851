//! A model's weights and what its layers compute: RMS norm, attention over live slots, gated feed-forward.
//!
//! Owns the weights, which never change after loading. Promises that a row's result depends on its token, its position
//! and its live slots only. Never owns KV rows, never knows sessions.

mod buffers;
mod forward;
mod linear;
mod load;

pub use linear::PackError;
pub use load::LoadError;

pub(crate) use buffers::Buffers;
pub(crate) use forward::{ForwardError, Observer, Pass};
pub(crate) use linear::Linear;

use hawser_device::ops::Rope;

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::shard::Shard;

/// A model ready to run, or one rank's shard of it. Shapes are those of the shard.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    shard: Shard,
    /// `[vocab, hidden]`.
    embedding: Linear,
    /// `[vocab, hidden]`; `None`: the embedding is the head.
    head: Option<Linear>,
    /// `[hidden]`.
    output_norm: Vec<f32>,
    layers: Vec<Layer>,
    rope: Rope,
}

/// One layer's weights; shapes as in [`crate::checkpoint::LayerPart`].
#[derive(Debug)]
pub(crate) struct Layer {
    attention_norm: Vec<f32>,
    /// q, k and v below each other.
    qkv: Linear,
    qkv_bias: Option<Vec<f32>>,
    head_norms: Option<HeadNorms>,
    output: Linear,
    ffn_norm: Vec<f32>,
    /// gate and up below each other.
    gate_up: Linear,
    down: Linear,
}

/// Norms of every head of q and k; `[head_dim]` each.
#[derive(Debug)]
struct HeadNorms {
    query: Vec<f32>,
    key: Vec<f32>,
}

impl Model {
    /// Reads and packs the weights. The checkpoint may be closed afterwards.
    ///
    /// # Errors
    /// [`LoadError`]: no memory, or a checkpoint whose weights cannot be read.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        load::load(checkpoint, &Shard::whole(checkpoint.config()))
    }

    /// As [`Model::load`], of one rank: nothing else is read.
    ///
    /// # Errors
    /// As [`Model::load`].
    ///
    /// # Panics
    /// If the shard is another model's, a bug of the caller.
    pub fn load_shard(checkpoint: &Checkpoint, shard: &Shard) -> Result<Self, LoadError> {
        load::load(checkpoint, shard)
    }

    /// What of the model is here.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The sizes of the whole model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of weights that one decode step reads here: everything but the embedding where that is no head too.
    #[must_use]
    pub fn bytes_per_step(&self) -> usize {
        let layer =
            |layer: &Layer| [&layer.qkv, &layer.output, &layer.gate_up, &layer.down].map(Linear::bytes);
        self.head().bytes() + self.layers.iter().flat_map(layer).sum::<usize>()
    }

    /// Bytes of all matrices that are here, as they lie in memory.
    #[must_use]
    pub fn matrix_bytes(&self) -> usize {
        let embedding = if self.head.is_some() { self.embedding.bytes() } else { 0 };
        self.bytes_per_step() + embedding
    }

    pub(crate) fn head(&self) -> &Linear {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

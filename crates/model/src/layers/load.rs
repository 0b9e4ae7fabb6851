//! A model's weights from a checkpoint, packed for the kernels.

use hawser_common::{Coded, ErrorCode};
use hawser_device::ops::Rope;
use thiserror::Error;

use super::linear::{Linear, Ordered, PackError};
use super::{HeadNorms, Layer, Model};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerPart, TensorRole};
use crate::config::{Architecture, ModelConfig};

/// Why a checkpoint cannot be made ready to run.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the weights of {what} cannot be made ready: {fault}")]
    Pack { what: String, fault: PackError },
}

impl Coded for LoadError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Checkpoint(error) => error.code(),
            Self::Pack { fault: PackError::Device(error), .. } => error.code(),
            Self::Pack { fault: PackError::Candle(_), .. } => ErrorCode::Invalid,
        }
    }
}

/// Reads one checkpoint.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    /// How to take the rows of q and of k so that RoPE turns halves; `None` where they lie so already.
    query_order: Option<Vec<u32>>,
    key_order: Option<Vec<u32>>,
}

pub(super) fn load(checkpoint: &Checkpoint) -> Result<Model, LoadError> {
    let config = checkpoint.config();
    let order = |heads| checkpoint.rope_pairs_adjacent().then(|| halves_from_pairs(heads, config.head_dim));
    let loader =
        Loader { checkpoint, config, query_order: order(config.heads), key_order: order(config.kv_heads) };
    let head =
        if config.tied { None } else { Some(loader.matrices("the head", &[(TensorRole::Head, None)])?) };
    Ok(Model {
        embedding: loader.matrices("the embedding", &[(TensorRole::Embedding, None)])?,
        head,
        output_norm: checkpoint.vector(TensorRole::OutputNorm)?,
        layers: (0..config.layers).map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
        rope: loader.rope()?,
        config: config.clone(),
    })
}

/// The order that puts rows stored as adjacent pairs (2i, 2i+1) of each head into halves (i, i + d/2): what
/// converters to GGUF do to q and k of Llama models, undone.
fn halves_from_pairs(heads: usize, head_dim: usize) -> Vec<u32> {
    let half = head_dim / 2;
    let source = |row: usize| {
        let (head, within) = (row / head_dim, row % head_dim);
        head * head_dim + 2 * (within % half) + within / half
    };
    (0..heads * head_dim)
        .map(|row| u32::try_from(source(row)).expect("sizes are bounded far below 2^32"))
        .collect()
}

impl Loader<'_> {
    fn layer(&self, layer: usize) -> Result<Layer, LoadError> {
        let role = |part| TensorRole::Layer(layer, part);
        let vector = |part| self.checkpoint.vector(role(part));
        let what = |name: &str| format!("{name} of layer {layer}");
        let qkv = [
            (role(LayerPart::Query), self.query_order.as_deref()),
            (role(LayerPart::Key), self.key_order.as_deref()),
            (role(LayerPart::Value), None),
        ];
        let qkv_bias = if self.config.architecture == Architecture::Qwen2 {
            let parts = [LayerPart::QueryBias, LayerPart::KeyBias, LayerPart::ValueBias];
            Some(parts.map(vector).into_iter().collect::<Result<Vec<_>, _>>()?.concat())
        } else {
            None
        };
        let head_norms = if self.config.architecture == Architecture::Qwen3 {
            Some(HeadNorms { query: vector(LayerPart::QueryNorm)?, key: vector(LayerPart::KeyNorm)? })
        } else {
            None
        };
        let gate_up = [(role(LayerPart::Gate), None), (role(LayerPart::Up), None)];
        Ok(Layer {
            attention_norm: vector(LayerPart::AttentionNorm)?,
            qkv: self.matrices(&what("q, k and v"), &qkv)?,
            qkv_bias,
            head_norms,
            output: self.matrices(&what("the attention output"), &[(role(LayerPart::Output), None)])?,
            ffn_norm: vector(LayerPart::FeedForwardNorm)?,
            gate_up: self.matrices(&what("gate and up"), &gate_up)?,
            down: self.matrices(&what("down"), &[(role(LayerPart::Down), None)])?,
        })
    }

    fn matrices(&self, what: &str, parts: &[(TensorRole, Option<&[u32]>)]) -> Result<Linear, LoadError> {
        let ordered = |&(role, order)| Ok(Ordered { view: self.checkpoint.matrix(role)?, order });
        let ordered = parts.iter().map(ordered).collect::<Result<Vec<_>, CheckpointError>>()?;
        Linear::new(&ordered).map_err(|fault| LoadError::Pack { what: what.to_owned(), fault })
    }

    fn rope(&self) -> Result<Rope, LoadError> {
        let mut frequencies = self.config.rope.frequencies(self.config.head_dim);
        if let Some(factors) = self.checkpoint.rope_factors()? {
            frequencies
                .iter_mut()
                .zip(factors)
                .for_each(|(frequency, factor)| *frequency /= f64::from(factor));
        }
        Ok(Rope::new(&frequencies, self.config.rope.attention_factor()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoing_the_pairs_is_the_inverse_of_what_converters_do() {
        let (heads, head_dim) = (3, 8);
        // Converters: reshape each head's rows to [2, d/2], swap the two axes.
        let converted: Vec<usize> = (0..heads)
            .flat_map(|head| {
                (0..head_dim).map(move |row| head * head_dim + (row % 2) * head_dim / 2 + row / 2)
            })
            .collect();
        let order = halves_from_pairs(heads, head_dim);
        let undone: Vec<usize> = order.iter().map(|&row| converted[row as usize]).collect();
        assert_eq!(undone, (0..heads * head_dim).collect::<Vec<_>>());
        assert_ne!(converted, undone);
    }
}

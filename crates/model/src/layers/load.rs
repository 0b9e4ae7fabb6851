//! A model's weights from a checkpoint, packed for the kernels.

use std::ops::Range;

use hawser_common::{Coded, ErrorCode};
use hawser_device::linear::Columns;
use hawser_device::ops::Rope;
use thiserror::Error;

use super::linear::{Linear, Ordered, PackError};
use super::{HeadNorms, Layer, Model};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerPart, TensorRole};
use crate::config::{Architecture, ModelConfig};
use crate::shard::{Blocks, Shard};

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

/// Reads one rank's shard of a checkpoint.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    shard: &'a Shard,
    /// The KV heads that are held here.
    kv_heads: Vec<usize>,
    query: RowCut,
    key: RowCut,
    value: RowCut,
    ffn: RowCut,
    vocab: RowCut,
    /// Where sums are cut.
    blocks: Blocks,
}

/// Which rows of a matrix are taken.
enum RowCut {
    Run(Range<usize>),
    /// In this order.
    Listed(Vec<u32>),
}

pub(super) fn load(checkpoint: &Checkpoint, shard: &Shard) -> Result<Model, LoadError> {
    let config = checkpoint.config();
    assert_eq!(shard.vocab_counts.iter().sum::<usize>(), config.vocab, "the shard is of this model");
    let (paired, head_dim) = (checkpoint.rope_pairs_adjacent(), config.head_dim);
    let kv_heads: Vec<usize> = shard.heads.kv.clone().collect();
    let query_heads: Vec<usize> = shard.heads.query.clone().collect();
    let loader = Loader {
        query: head_rows(&query_heads, head_dim, paired),
        key: head_rows(&kv_heads, head_dim, paired),
        value: head_rows(&kv_heads, head_dim, false),
        ffn: RowCut::Run(shard.ffn.clone()),
        vocab: RowCut::Run(shard.vocab.clone()),
        blocks: Blocks::of(checkpoint)?,
        checkpoint,
        config,
        shard,
        kv_heads,
    };
    let tokens = |what, role| loader.matrices(what, &[(role, &loader.vocab)], None);
    Ok(Model {
        embedding: tokens("the embedding", TensorRole::Embedding)?,
        head: if config.tied { None } else { Some(tokens("the head", TensorRole::Head)?) },
        output_norm: checkpoint.vector(TensorRole::OutputNorm)?,
        layers: (0..config.layers).map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
        rope: loader.rope()?,
        config: config.clone(),
        shard: shard.clone(),
    })
}

/// The rows of some heads. `paired`: they are stored as adjacent pairs and wanted as halves.
fn head_rows(heads: &[usize], head_dim: usize, paired: bool) -> RowCut {
    match heads {
        [first, .., last] | [first @ last] if !paired && last - first + 1 == heads.len() => {
            RowCut::Run(first * head_dim..(last + 1) * head_dim)
        }
        _ => {
            let within: Vec<usize> =
                if paired { halves_from_pairs(head_dim) } else { (0..head_dim).collect() };
            let rows = |&head: &usize| within.iter().map(move |row| head * head_dim + row);
            let row = |row| u32::try_from(row).expect("sizes are bounded far below 2^32");
            RowCut::Listed(heads.iter().flat_map(rows).map(row).collect())
        }
    }
}

/// The columns of a run of parts, `width` columns each; `None`: of all `parts`.
fn columns(run: &Range<usize>, parts: usize, width: usize) -> Option<Columns> {
    (run.len() < parts).then(|| Columns { first: run.start * width, count: run.len() * width })
}

/// The order that puts a head's rows stored as adjacent pairs (2i, 2i+1) into halves (i, i + d/2): what converters to
/// GGUF do to q and k of Llama models, undone.
fn halves_from_pairs(head_dim: usize) -> Vec<usize> {
    let half = head_dim / 2;
    (0..head_dim).map(|row| 2 * (row % half) + row / half).collect()
}

impl Loader<'_> {
    fn layer(&self, layer: usize) -> Result<Layer, LoadError> {
        let role = |part| TensorRole::Layer(layer, part);
        let vector = |part| self.checkpoint.vector(role(part));
        let what = |name: &str| format!("{name} of layer {layer}");
        let head_norms = if self.config.architecture == Architecture::Qwen3 {
            Some(HeadNorms { query: vector(LayerPart::QueryNorm)?, key: vector(LayerPart::KeyNorm)? })
        } else {
            None
        };
        let qkv = [
            (role(LayerPart::Query), &self.query),
            (role(LayerPart::Key), &self.key),
            (role(LayerPart::Value), &self.value),
        ];
        let gate_up = [(role(LayerPart::Gate), &self.ffn), (role(LayerPart::Up), &self.ffn)];
        let all = RowCut::Run(0..self.config.hidden);
        let (output, down) = ([(role(LayerPart::Output), &all)], [(role(LayerPart::Down), &all)]);
        let heads = columns(&self.shard.heads.query, self.config.heads, self.config.head_dim);
        let inner = columns(&self.shard.ffn, self.config.ffn, 1);
        let output_piece = self.blocks.output_piece(self.config.head_dim);
        Ok(Layer {
            attention_norm: vector(LayerPart::AttentionNorm)?,
            qkv: self.matrices(&what("q, k and v"), &qkv, None)?,
            qkv_bias: self.qkv_bias(layer)?,
            head_norms,
            output: self.matrices(&what("the attention output"), &output, heads)?.in_pieces(output_piece),
            ffn_norm: vector(LayerPart::FeedForwardNorm)?,
            gate_up: self.matrices(&what("gate and up"), &gate_up, None)?,
            down: self.matrices(&what("down"), &down, inner)?.in_pieces(self.blocks.down.items),
        })
    }

    /// The biases of the heads that are here. No architecture that is served has one on the attention output or in the
    /// feed-forward; it would have to be added once, after the sum over ranks.
    fn qkv_bias(&self, layer: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if self.config.architecture != Architecture::Qwen2 {
            return Ok(None);
        }
        let query: Vec<usize> = self.shard.heads.query.clone().collect();
        let parts = [
            (LayerPart::QueryBias, &query),
            (LayerPart::KeyBias, &self.kv_heads),
            (LayerPart::ValueBias, &self.kv_heads),
        ];
        let mut taken = Vec::new();
        for (part, heads) in parts {
            let bias = self.checkpoint.vector(TensorRole::Layer(layer, part))?;
            let head = |&head: &usize| &bias[head * self.config.head_dim..][..self.config.head_dim];
            taken.extend(heads.iter().flat_map(head));
        }
        Ok(Some(taken))
    }

    fn matrices(
        &self,
        what: &str,
        parts: &[(TensorRole, &RowCut)],
        columns: Option<Columns>,
    ) -> Result<Linear, LoadError> {
        let mut ordered = Vec::with_capacity(parts.len());
        for &(role, rows) in parts {
            let view = self.checkpoint.matrix(role)?;
            ordered.push(match rows {
                RowCut::Run(run) => Ordered { view: view.rows(run.clone()), order: None, columns },
                RowCut::Listed(order) => Ordered { view, order: Some(order), columns },
            });
        }
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
        // Of some heads only, and of one twice.
        for heads in [vec![0, 1, 2], vec![1], vec![2, 2, 0]] {
            let RowCut::Listed(order) = head_rows(&heads, head_dim, true) else {
                panic!("an order is needed")
            };
            let undone: Vec<usize> = order.iter().map(|&row| converted[row as usize]).collect();
            let expected: Vec<usize> =
                heads.iter().flat_map(|head| head * head_dim..(head + 1) * head_dim).collect();
            assert_eq!(undone, expected);
            assert_ne!(undone, order.iter().map(|&row| row as usize).collect::<Vec<_>>());
        }
    }
}

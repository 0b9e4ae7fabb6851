//! What the tensors of each architecture are called in each kind of file, and which shapes they must have.

use super::error::CheckpointFault;
use super::tensors::TensorTable;
use crate::config::{Architecture, ModelConfig};

/// A tensor by its part in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[hidden]`.
    OutputNorm,
    /// `[vocab, hidden]`; absent where the embedding is the head too.
    Head,
    /// `[head_dim / 2]`: what each RoPE frequency is divided by; in GGUF files of Llama 3.1 and later.
    RopeFactors,
    /// A tensor of the layer with this index.
    Layer(usize, LayerPart),
}

/// A tensor by its part in a layer. Shapes in [`ModelConfig`]'s terms; q = heads × `head_dim`, kv = `kv_heads` × `head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPart {
    /// `[hidden]`, and so the other norm.
    AttentionNorm,
    /// `[q, hidden]`.
    Query,
    /// `[kv, hidden]`.
    Key,
    /// `[kv, hidden]`.
    Value,
    /// `[q]`, and so on.
    QueryBias,
    KeyBias,
    ValueBias,
    /// `[head_dim]`, the same for every head.
    QueryNorm,
    KeyNorm,
    /// `[hidden, q]`.
    Output,
    FeedForwardNorm,
    /// `[ffn, hidden]`.
    Gate,
    /// `[ffn, hidden]`.
    Up,
    /// `[hidden, ffn]`.
    Down,
}

const PLAIN_PARTS: [LayerPart; 9] = [
    LayerPart::AttentionNorm,
    LayerPart::Query,
    LayerPart::Key,
    LayerPart::Value,
    LayerPart::Output,
    LayerPart::FeedForwardNorm,
    LayerPart::Gate,
    LayerPart::Up,
    LayerPart::Down,
];
const BIAS_PARTS: [LayerPart; 3] = [LayerPart::QueryBias, LayerPart::KeyBias, LayerPart::ValueBias];
const HEAD_NORM_PARTS: [LayerPart; 2] = [LayerPart::QueryNorm, LayerPart::KeyNorm];

/// Whose names a checkpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    Gguf,
    HuggingFace,
}

impl Naming {
    pub(super) fn name(self, role: TensorRole) -> String {
        match (self, role) {
            (Self::Gguf, TensorRole::Layer(layer, part)) => format!("blk.{layer}.{}", gguf_part(part)),
            (Self::Gguf, TensorRole::Embedding) => "token_embd.weight".to_owned(),
            (Self::Gguf, TensorRole::OutputNorm) => "output_norm.weight".to_owned(),
            (Self::Gguf, TensorRole::Head) => "output.weight".to_owned(),
            (_, TensorRole::RopeFactors) => "rope_freqs.weight".to_owned(),
            (Self::HuggingFace, TensorRole::Layer(layer, part)) => {
                format!("model.layers.{layer}.{}", hugging_face_part(part))
            }
            (Self::HuggingFace, TensorRole::Embedding) => "model.embed_tokens.weight".to_owned(),
            (Self::HuggingFace, TensorRole::OutputNorm) => "model.norm.weight".to_owned(),
            (Self::HuggingFace, TensorRole::Head) => "lm_head.weight".to_owned(),
        }
    }

    /// Tensors that some exporters leave in a file and that change nothing: a second copy of a tied head, and tables
    /// that follow from the configuration.
    fn is_redundant(self, name: &str, config: &ModelConfig) -> bool {
        match self {
            Self::Gguf => name == self.name(TensorRole::RopeFactors),
            Self::HuggingFace => {
                name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == self.name(TensorRole::Head))
            }
        }
    }
}

fn gguf_part(part: LayerPart) -> &'static str {
    match part {
        LayerPart::AttentionNorm => "attn_norm.weight",
        LayerPart::Query => "attn_q.weight",
        LayerPart::Key => "attn_k.weight",
        LayerPart::Value => "attn_v.weight",
        LayerPart::QueryBias => "attn_q.bias",
        LayerPart::KeyBias => "attn_k.bias",
        LayerPart::ValueBias => "attn_v.bias",
        LayerPart::QueryNorm => "attn_q_norm.weight",
        LayerPart::KeyNorm => "attn_k_norm.weight",
        LayerPart::Output => "attn_output.weight",
        LayerPart::FeedForwardNorm => "ffn_norm.weight",
        LayerPart::Gate => "ffn_gate.weight",
        LayerPart::Up => "ffn_up.weight",
        LayerPart::Down => "ffn_down.weight",
    }
}

fn hugging_face_part(part: LayerPart) -> &'static str {
    match part {
        LayerPart::AttentionNorm => "input_layernorm.weight",
        LayerPart::Query => "self_attn.q_proj.weight",
        LayerPart::Key => "self_attn.k_proj.weight",
        LayerPart::Value => "self_attn.v_proj.weight",
        LayerPart::QueryBias => "self_attn.q_proj.bias",
        LayerPart::KeyBias => "self_attn.k_proj.bias",
        LayerPart::ValueBias => "self_attn.v_proj.bias",
        LayerPart::QueryNorm => "self_attn.q_norm.weight",
        LayerPart::KeyNorm => "self_attn.k_norm.weight",
        LayerPart::Output => "self_attn.o_proj.weight",
        LayerPart::FeedForwardNorm => "post_attention_layernorm.weight",
        LayerPart::Gate => "mlp.gate_proj.weight",
        LayerPart::Up => "mlp.up_proj.weight",
        LayerPart::Down => "mlp.down_proj.weight",
    }
}

/// The shape a tensor of this model must have, slowest-varying first.
pub(super) fn shape(config: &ModelConfig, role: TensorRole) -> Vec<usize> {
    let (hidden, ffn) = (config.hidden, config.ffn);
    match role {
        TensorRole::Embedding | TensorRole::Head => vec![config.vocab, hidden],
        TensorRole::OutputNorm => vec![hidden],
        TensorRole::RopeFactors => vec![config.head_dim / 2],
        TensorRole::Layer(_, part) => match part {
            LayerPart::AttentionNorm | LayerPart::FeedForwardNorm => vec![hidden],
            LayerPart::Query => vec![config.query_width(), hidden],
            LayerPart::Key | LayerPart::Value => vec![config.kv_width(), hidden],
            LayerPart::QueryBias => vec![config.query_width()],
            LayerPart::KeyBias | LayerPart::ValueBias => vec![config.kv_width()],
            LayerPart::QueryNorm | LayerPart::KeyNorm => vec![config.head_dim],
            LayerPart::Output => vec![hidden, config.query_width()],
            LayerPart::Gate | LayerPart::Up => vec![ffn, hidden],
            LayerPart::Down => vec![hidden, ffn],
        },
    }
}

/// Every tensor this model must have.
fn required(config: &ModelConfig) -> impl Iterator<Item = TensorRole> {
    let bias: &[LayerPart] = if config.architecture == Architecture::Qwen2 { &BIAS_PARTS } else { &[] };
    let norms: &[LayerPart] = if config.architecture == Architecture::Qwen3 { &HEAD_NORM_PARTS } else { &[] };
    let parts = move || PLAIN_PARTS.iter().chain(bias).chain(norms);
    let layers =
        (0..config.layers).flat_map(move |layer| parts().map(move |part| TensorRole::Layer(layer, *part)));
    let head = (!config.tied).then_some(TensorRole::Head);
    [TensorRole::Embedding, TensorRole::OutputNorm].into_iter().chain(head).chain(layers)
}

/// Checks that the table has the model's tensors in their shapes, and no others. A tensor that is not used is an
/// error, because a model that runs without one of its weights answers, and answers wrongly.
pub(super) fn verify(
    table: &TensorTable,
    naming: Naming,
    config: &ModelConfig,
) -> Result<(), CheckpointFault> {
    let mut used = std::collections::BTreeSet::new();
    for role in required(config) {
        let name = naming.name(role);
        table.shaped(&name, &shape(config, role))?;
        used.insert(name);
    }
    let extra = |name: &&str| !used.contains(*name) && !naming.is_redundant(name, config);
    match table.names().find(extra) {
        Some(name) => Err(CheckpointFault::ExtraTensor {
            tensor: name.to_owned(),
            architecture: config.architecture.name(),
        }),
        None => Ok(()),
    }
}

//! Writes GGUF files: right ones from a checkpoint, and wrong ones from those.

use anyhow::Result;
use hawser_model::checkpoint::{Checkpoint, LayerPart, TensorRole};
use hawser_model::config::{Architecture, ModelConfig};

#[derive(Clone, Debug)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Fastest-varying first.
    pub(crate) dims: Vec<u64>,
    pub(crate) dtype: u32,
    pub(crate) data: Vec<u8>,
    /// Added to the offset that is written.
    pub(crate) shift: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) pairs: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

const ALIGNMENT: usize = 32;

impl Gguf {
    /// The checkpoint as a converter writes it: f32 weights, and of Llama models q and k with their rows in pairs.
    pub(crate) fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let mut gguf = Self::of(checkpoint.config());
        gguf.add_weights(checkpoint)?;
        Ok(gguf)
    }

    /// A model of these sizes, without its weights.
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let name = match config.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        };
        let size = |key: &str, value: usize| {
            (format!("{name}.{key}"), Value::U32(u32::try_from(value).unwrap_or(0)))
        };
        let float = |key: &str, value: f64| (format!("{name}.{key}"), Value::F32(value as f32));
        let pairs = vec![
            ("general.architecture".to_owned(), Value::Text(name.to_owned())),
            size("block_count", config.layers),
            size("context_length", config.context_length),
            size("embedding_length", config.hidden),
            size("feed_forward_length", config.ffn),
            size("attention.head_count", config.heads),
            size("attention.head_count_kv", config.kv_heads),
            size("attention.key_length", config.head_dim),
            float("rope.freq_base", config.rope.theta),
            float("attention.layer_norm_rms_epsilon", config.rms_eps.into()),
        ];
        Self { version: 3, pairs, tensors: Vec::new() }
    }

    fn add_weights(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let config = checkpoint.config();
        self.matrix(checkpoint, TensorRole::Embedding, "token_embd.weight", None)?;
        self.vector("output_norm.weight", checkpoint.vector(TensorRole::OutputNorm)?);
        if !config.tied {
            self.matrix(checkpoint, TensorRole::Head, "output.weight", None)?;
        }
        let permuted = (config.architecture == Architecture::Llama).then_some(config.head_dim);
        for layer in 0..config.layers {
            let matrices = [
                (LayerPart::Query, "attn_q", permuted),
                (LayerPart::Key, "attn_k", permuted),
                (LayerPart::Value, "attn_v", None),
                (LayerPart::Output, "attn_output", None),
                (LayerPart::Gate, "ffn_gate", None),
                (LayerPart::Up, "ffn_up", None),
                (LayerPart::Down, "ffn_down", None),
            ];
            for (part, name, permuted) in matrices {
                let name = format!("blk.{layer}.{name}.weight");
                self.matrix(checkpoint, TensorRole::Layer(layer, part), &name, permuted)?;
            }
            let norms = [
                (LayerPart::AttentionNorm, "attn_norm.weight"),
                (LayerPart::FeedForwardNorm, "ffn_norm.weight"),
            ];
            let own: &[_] = match config.architecture {
                Architecture::Llama => &[],
                Architecture::Qwen2 => &[
                    (LayerPart::QueryBias, "attn_q.bias"),
                    (LayerPart::KeyBias, "attn_k.bias"),
                    (LayerPart::ValueBias, "attn_v.bias"),
                ],
                Architecture::Qwen3 => &[
                    (LayerPart::QueryNorm, "attn_q_norm.weight"),
                    (LayerPart::KeyNorm, "attn_k_norm.weight"),
                ],
            };
            for (part, name) in norms.iter().chain(own) {
                self.vector(
                    &format!("blk.{layer}.{name}"),
                    checkpoint.vector(TensorRole::Layer(layer, *part))?,
                );
            }
        }
        Ok(())
    }

    /// Adds a matrix of f32. `permuted`: within each head of so many rows, row `h·d/2 + i` goes to `2i + h`.
    fn matrix(
        &mut self,
        from: &Checkpoint,
        role: TensorRole,
        name: &str,
        permuted: Option<usize>,
    ) -> Result<()> {
        let view = from.matrix(role)?;
        let row_bytes = view.data.len() / view.rows;
        let source = |row: usize| match permuted {
            None => row,
            Some(head) => row / head * head + row % 2 * head / 2 + row % head / 2,
        };
        let data = (0..view.rows)
            .flat_map(|row| &view.data[source(row) * row_bytes..][..row_bytes])
            .copied()
            .collect();
        let dims = vec![view.cols as u64, view.rows as u64];
        self.tensors.push(Tensor { name: name.to_owned(), dims, dtype: 0, data, shift: 0 });
        Ok(())
    }

    pub(crate) fn vector(&mut self, name: &str, values: Vec<f32>) {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: vec![values.len() as u64],
            dtype: 0,
            data,
            shift: 0,
        });
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("the test names no tensor of the file: {name}"))
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        match self.pairs.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.pairs.retain(|(name, _)| name != key);
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            text(&mut out, key);
            value.write(&mut out);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.dtype.to_le_bytes());
            out.extend(offset.wrapping_add(tensor.shift).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(ALIGNMENT) as u64;
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        let array = |out: &mut Vec<u8>, element: u32, count: usize| {
            out.extend(9_u32.to_le_bytes());
            out.extend(element.to_le_bytes());
            out.extend((count as u64).to_le_bytes());
        };
        let scalar = |out: &mut Vec<u8>, kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U32(value) => scalar(out, 4, &value.to_le_bytes()),
            Self::F32(value) => scalar(out, 6, &value.to_le_bytes()),
            Self::Bool(value) => scalar(out, 7, &[u8::from(*value)]),
            Self::Text(value) => {
                out.extend(8_u32.to_le_bytes());
                text(out, value);
            }
            Self::Texts(values) => {
                array(out, 8, values.len());
                values.iter().for_each(|value| text(out, value));
            }
            Self::I32s(values) => {
                array(out, 5, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
    }
}

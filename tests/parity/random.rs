//! Small models of any shape with random weights, as GGUF files.

use std::path::Path;

use anyhow::Result;
use hawser_model::checkpoint::Checkpoint;
use hawser_model::config::{Architecture, ModelConfig, RopeConfig, RopeScaling};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::gguf::{Gguf, Tensor};

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    Q4_1,
    Q8_0,
    /// One that the device crate has no kernels for.
    Q6K,
}

impl Format {
    /// Weights of a block, and the number that GGUF gives the format.
    pub(crate) fn block(self) -> (usize, u32) {
        match self {
            Self::F32 => (1, 0),
            Self::Q4_1 => (32, 3),
            Self::Q8_0 => (32, 8),
            Self::Q6K => (256, 14),
        }
    }

    /// Blocks of random weights, all of them within about ±0.2.
    fn weights(self, rng: &mut StdRng, blocks: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let bytes =
            |out: &mut Vec<u8>, rng: &mut StdRng, count| out.extend((0..count).map(|_| rng.random::<u8>()));
        for _ in 0..blocks {
            match self {
                Self::F32 => out.extend(rng.random_range(-0.2_f32..0.2).to_le_bytes()),
                Self::Q4_1 => {
                    // d is a power of two, and m is -7.5 d.
                    let exponent: u16 = rng.random_range(8..11);
                    out.extend((exponent << 10).to_le_bytes());
                    out.extend((0x8000 | (exponent + 2) << 10 | 0x380).to_le_bytes());
                    bytes(&mut out, rng, 16);
                }
                Self::Q8_0 => {
                    out.extend((rng.random_range(4_u16..7) << 10).to_le_bytes());
                    bytes(&mut out, rng, 32);
                }
                Self::Q6K => {
                    bytes(&mut out, rng, 192);
                    out.extend((0..16).map(|_| rng.random_range(0..12_u8)));
                    out.extend((3_u16 << 10).to_le_bytes());
                }
            }
        }
        out
    }
}

/// A model of these sizes.
pub(crate) fn config(architecture: Architecture, [heads, kv_heads, head_dim]: [usize; 3]) -> ModelConfig {
    ModelConfig {
        architecture,
        hidden: 64,
        ffn: 288,
        layers: 2,
        heads,
        kv_heads,
        head_dim,
        vocab: 101,
        rope: RopeConfig { theta: 1e4, scaling: RopeScaling::None },
        rms_eps: 1e-5,
        tied: architecture == Architecture::Llama,
        context_length: 512,
    }
}

/// Writes a model of random weights to `path` and opens it.
pub(crate) fn checkpoint(
    path: &Path,
    config: &ModelConfig,
    format: Format,
    rng: &mut StdRng,
) -> Result<Checkpoint> {
    let mut gguf = Gguf::of(config);
    let (block, dtype) = format.block();
    let matrix = |gguf: &mut Gguf, rng: &mut StdRng, name: String, rows: usize, cols: usize| {
        let data = format.weights(rng, rows * cols / block);
        gguf.tensors.push(Tensor { name, dims: vec![cols as u64, rows as u64], dtype, data, shift: 0 });
    };
    let vector = |gguf: &mut Gguf, rng: &mut StdRng, name: &str, length: usize, middle: f32| {
        let values = (0..length).map(|_| middle + rng.random_range(-0.4_f32..0.4)).collect();
        gguf.vector(name, values);
    };
    let (q, kv, hidden) = (config.query_width(), config.kv_width(), config.hidden);
    matrix(&mut gguf, rng, "token_embd.weight".to_owned(), config.vocab, hidden);
    vector(&mut gguf, rng, "output_norm.weight", hidden, 1.0);
    if !config.tied {
        matrix(&mut gguf, rng, "output.weight".to_owned(), config.vocab, hidden);
    }
    for layer in 0..config.layers {
        let matrices = [
            ("attn_q", q, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, q),
            ("ffn_gate", config.ffn, hidden),
            ("ffn_up", config.ffn, hidden),
            ("ffn_down", hidden, config.ffn),
        ];
        for (name, rows, cols) in matrices {
            matrix(&mut gguf, rng, format!("blk.{layer}.{name}.weight"), rows, cols);
        }
        let norms = [("attn_norm.weight", hidden, 1.0), ("ffn_norm.weight", hidden, 1.0)];
        let own: &[(&str, usize, f32)] = match config.architecture {
            Architecture::Llama => &[],
            Architecture::Qwen2 => {
                &[("attn_q.bias", q, 0.0), ("attn_k.bias", kv, 0.0), ("attn_v.bias", kv, 0.0)]
            }
            Architecture::Qwen3 => {
                &[("attn_q_norm.weight", config.head_dim, 1.0), ("attn_k_norm.weight", config.head_dim, 1.0)]
            }
        };
        for (name, length, middle) in norms.iter().chain(own) {
            vector(&mut gguf, rng, &format!("blk.{layer}.{name}"), *length, *middle);
        }
    }
    std::fs::write(path, gguf.to_bytes())?;
    Ok(Checkpoint::open(path)?)
}

//! The shape of a model: what its configuration says, checked once, whatever file it came from.

mod rope;

pub(crate) use rope::yarn_magnitude;
pub use rope::{RopeConfig, RopeScaling};

use thiserror::Error;

/// Which of the served families a model belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    /// Llama with biases on q, k and v. Qwen2 and Qwen2.5.
    Qwen2,
    /// Llama with an RMS norm on every head of q and k.
    Qwen3,
}

impl Architecture {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "Llama",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
        }
    }
}

/// A model's sizes and constants. `check` holds for every value that a checkpoint hands out.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the feed-forward part.
    pub ffn: usize,
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    pub vocab: usize,
    pub rope: RopeConfig,
    /// Added to the mean square in every RMS norm.
    pub rms_eps: f32,
    /// The embedding is the head too.
    pub tied: bool,
    /// Most positions of a sequence.
    pub context_length: usize,
}

/// A configuration that no model can have.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} is {value}; {expected}")]
pub struct InvalidConfig {
    pub name: &'static str,
    pub value: String,
    pub expected: &'static str,
}

/// No model is near any of these: they keep products of sizes far from overflow and tables small.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 12;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_VOCAB: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 26;

impl ModelConfig {
    /// Width of all query heads together.
    #[must_use]
    pub const fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    #[must_use]
    pub const fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// # Errors
    /// [`InvalidConfig`] names the first value out of its bounds.
    pub fn check(self) -> Result<Self, InvalidConfig> {
        let size = |name, value: usize, most: usize| {
            let ok = (1..=most).contains(&value);
            let expected = "a size that some model has is expected";
            if ok { Ok(()) } else { Err(InvalidConfig { name, value: value.to_string(), expected }) }
        };
        size("the hidden size", self.hidden, MAX_WIDTH)?;
        size("the feed-forward size", self.ffn, MAX_WIDTH)?;
        size("the number of layers", self.layers, MAX_LAYERS)?;
        size("the number of heads", self.heads, MAX_HEADS)?;
        size("the number of key-value heads", self.kv_heads, MAX_HEADS)?;
        size("the head size", self.head_dim, MAX_HEAD_DIM)?;
        size("the vocabulary size", self.vocab, MAX_VOCAB)?;
        size("the context length", self.context_length, MAX_CONTEXT)?;
        let invalid = |name, value, expected| Err(InvalidConfig { name, value, expected });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = "a divisor of the number of heads is expected";
            return invalid("the number of key-value heads", self.kv_heads.to_string(), expected);
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("the head size", self.head_dim.to_string(), "an even number is expected");
        }
        if !(self.rms_eps > 0.0 && self.rms_eps < 1.0) {
            return invalid(
                "the norm's epsilon",
                self.rms_eps.to_string(),
                "a number between 0 and 1 is expected",
            );
        }
        self.rope.check()?;
        Ok(self)
    }
}

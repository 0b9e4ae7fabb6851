//! A model's configuration from Hugging Face's `config.json`.

use serde::Deserialize;

use crate::checkpoint::error::CheckpointFault;
use crate::checkpoint::invalid;
use crate::config::{Architecture, ModelConfig, RopeConfig, RopeScaling, yarn_magnitude};

/// The keys that are read; a file has many more.
#[derive(Debug, Deserialize)]
struct Keys {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    /// The older form: scaling without the base.
    rope_scaling: Option<Rope>,
    /// The newer form: scaling and base.
    rope_parameters: Option<Rope>,
    #[serde(default)]
    use_sliding_window: bool,
    sliding_window: Option<usize>,
    eos_token_id: Option<TokenIds>,
}

/// One id or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenIds {
    One(u32),
    Several(Vec<u32>),
}

impl TokenIds {
    pub(super) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Several(ids) => ids,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Rope {
    /// Called `type` in older files.
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
}

/// The configuration, and the end tokens it names.
pub(super) fn parse(text: &str) -> Result<(ModelConfig, Vec<u32>), CheckpointFault> {
    let keys: Keys =
        serde_json::from_str(text).map_err(|e| CheckpointFault::Json { reason: e.to_string() })?;
    let architecture = match keys.model_type.as_str() {
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        other => return Err(CheckpointFault::Architecture { found: other.to_owned() }),
    };
    refuse_unserved(&keys)?;
    let heads = keys.num_attention_heads;
    let ends = keys.eos_token_id.clone().map(TokenIds::into_vec).unwrap_or_default();
    let config = ModelConfig {
        architecture,
        hidden: keys.hidden_size,
        ffn: keys.intermediate_size,
        layers: keys.num_hidden_layers,
        heads,
        kv_heads: keys.num_key_value_heads.unwrap_or(heads),
        head_dim: keys.head_dim.unwrap_or_else(|| keys.hidden_size / heads.max(1)),
        vocab: keys.vocab_size,
        rope: rope(&keys)?,
        rms_eps: keys.rms_norm_eps as f32,
        tied: keys.tie_word_embeddings,
        context_length: keys.max_position_embeddings,
    };
    Ok((config.check().map_err(|error| invalid(&error))?, ends))
}

/// Refuses what would change the arithmetic and is not done here.
fn refuse_unserved(keys: &Keys) -> Result<(), CheckpointFault> {
    let unsupported = |what: String, why| Err(CheckpointFault::Unsupported { what, why });
    if keys.attention_bias || keys.mlp_bias {
        return unsupported(
            "attention_bias or mlp_bias".to_owned(),
            "of the biases only Qwen2's on q, k, v are",
        );
    }
    match keys.hidden_act.as_deref() {
        None | Some("silu") => {}
        Some(other) => return unsupported(format!("the activation {other}"), "only silu is"),
    }
    match keys.sliding_window {
        // A window as long as the context never hides a position.
        Some(window) if keys.use_sliding_window && window < keys.max_position_embeddings => unsupported(
            format!("a sliding window of {window} positions"),
            "every layer attends to all live positions",
        ),
        _ => Ok(()),
    }
}

fn rope(keys: &Keys) -> Result<RopeConfig, CheckpointFault> {
    let rope = keys.rope_parameters.as_ref().or(keys.rope_scaling.as_ref()).cloned().unwrap_or_default();
    let theta = rope.rope_theta.or(keys.rope_theta).unwrap_or(10_000.0);
    let needed = |name: &str, value: Option<f64>| {
        value.ok_or_else(|| CheckpointFault::MissingKey { key: format!("rope_parameters.{name}") })
    };
    let context = keys.max_position_embeddings as f64;
    let scaling = match rope.rope_type.as_deref() {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: needed("factor", rope.factor)? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: needed("factor", rope.factor)?,
            low: needed("low_freq_factor", rope.low_freq_factor)?,
            high: needed("high_freq_factor", rope.high_freq_factor)?,
            original: needed("original_max_position_embeddings", rope.original_max_position_embeddings)?,
        },
        Some("yarn") => {
            let factor = needed("factor", rope.factor)?;
            RopeScaling::Yarn {
                factor,
                beta_fast: rope.beta_fast.unwrap_or(32.0),
                beta_slow: rope.beta_slow.unwrap_or(1.0),
                original: rope.original_max_position_embeddings.unwrap_or(context),
                attention_factor: yarn_attention(&rope, factor),
                truncate: rope.truncate.unwrap_or(true),
            }
        }
        Some(other) => {
            let what = format!("the rope scaling {other}");
            return Err(CheckpointFault::Unsupported { what, why: "default, linear, llama3 and yarn are" });
        }
    };
    Ok(RopeConfig { theta, scaling })
}

fn yarn_attention(rope: &Rope, factor: f64) -> f64 {
    let set = |value: Option<f64>| value.filter(|value| *value != 0.0);
    match (rope.attention_factor, set(rope.mscale), set(rope.mscale_all_dim)) {
        (Some(given), _, _) => given,
        (None, Some(scale), Some(all)) => yarn_magnitude(factor, scale) / yarn_magnitude(factor, all),
        (None, _, _) => yarn_magnitude(factor, 1.0),
    }
}

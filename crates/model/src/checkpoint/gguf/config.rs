//! A model's configuration from GGUF metadata.

use super::super::error::CheckpointFault;
use super::super::tensors::TensorTable;
use super::Metadata;
use crate::checkpoint::invalid;
use crate::config::{Architecture, ModelConfig, RopeConfig, RopeScaling, yarn_magnitude};
use crate::text::GgufVocab;

/// Reads the keys of one architecture.
struct Keys<'m> {
    metadata: &'m Metadata,
    architecture: &'m str,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn size(&self, suffix: &str) -> Result<Option<usize>, CheckpointFault> {
        let value = self.metadata.integer(&self.key(suffix))?;
        // Sizes are bounded right after; what does not fit `usize` is far beyond every bound.
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn required_size(&self, suffix: &str) -> Result<usize, CheckpointFault> {
        self.size(suffix)?.ok_or_else(|| CheckpointFault::MissingKey { key: self.key(suffix) })
    }

    fn float(&self, suffix: &str) -> Result<Option<f64>, CheckpointFault> {
        self.metadata.float(&self.key(suffix))
    }

    fn required_float(&self, suffix: &str) -> Result<f64, CheckpointFault> {
        self.float(suffix)?.ok_or_else(|| CheckpointFault::MissingKey { key: self.key(suffix) })
    }
}

/// # Errors
/// [`CheckpointFault`] names the first key that is missing or wrong.
pub(in crate::checkpoint) fn model_config(
    metadata: &Metadata,
    table: &TensorTable,
) -> Result<ModelConfig, CheckpointFault> {
    const ARCHITECTURE: &str = "general.architecture";
    let missing = || CheckpointFault::MissingKey { key: ARCHITECTURE.to_owned() };
    let name = metadata.text(ARCHITECTURE)?.ok_or_else(missing)?;
    let architecture = match name {
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        other => return Err(CheckpointFault::Architecture { found: other.to_owned() }),
    };
    let keys = Keys { metadata, architecture: name };
    refuse_unserved(&keys)?;
    let (hidden, heads) =
        (keys.required_size("embedding_length")?, keys.required_size("attention.head_count")?);
    let head_dim = match keys.size("attention.key_length")? {
        Some(length) => length,
        None => hidden / heads.max(1),
    };
    equal_to_head(&keys, "attention.value_length", head_dim)?;
    equal_to_head(&keys, "rope.dimension_count", head_dim)?;
    // The vocabulary's size has no key in most files: the embedding has one row per token.
    let embedding = table.get("token_embd.weight").and_then(|entry| entry.shape.first().copied());
    let embedding =
        embedding.ok_or_else(|| CheckpointFault::MissingTensor { tensor: "token_embd.weight".to_owned() });
    let context_length = keys.required_size("context_length")?;
    let config = ModelConfig {
        architecture,
        hidden,
        ffn: keys.required_size("feed_forward_length")?,
        layers: keys.required_size("block_count")?,
        heads,
        kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab: embedding?,
        rope: RopeConfig {
            theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: scaling(&keys, context_length)?,
        },
        rms_eps: keys.required_float("attention.layer_norm_rms_epsilon")? as f32,
        tied: table.get("output.weight").is_none(),
        context_length,
    };
    config.check().map_err(|error| invalid(&error))
}

/// Refuses what would change the arithmetic and is not done here.
fn refuse_unserved(keys: &Keys<'_>) -> Result<(), CheckpointFault> {
    if keys.size("expert_count")?.unwrap_or(0) > 0 {
        let what = "a mixture of experts".to_owned();
        return Err(CheckpointFault::Unsupported { what, why: "only dense models are" });
    }
    let window = keys.size("attention.sliding_window")?.unwrap_or(0);
    if window > 0 && window < keys.size("context_length")?.unwrap_or(usize::MAX) {
        let what = format!("a sliding window of {window} positions");
        return Err(CheckpointFault::Unsupported { what, why: "every layer attends to all live positions" });
    }
    Ok(())
}

fn equal_to_head(keys: &Keys<'_>, suffix: &str, head_dim: usize) -> Result<(), CheckpointFault> {
    match keys.size(suffix)? {
        Some(found) if found != head_dim => Err(CheckpointFault::KeyValue {
            key: keys.key(suffix),
            value: found.to_string(),
            expected: format!("the head size, {head_dim}, is expected"),
        }),
        _ => Ok(()),
    }
}

fn scaling(keys: &Keys<'_>, context_length: usize) -> Result<RopeScaling, CheckpointFault> {
    let key = keys.key("rope.scaling.type");
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => factor,
        // What older files call the factor of a linear scaling.
        None => keys.float("rope.scale_linear")?.unwrap_or(1.0),
    };
    match keys.metadata.text(&key)? {
        // A factor of 0 stands for "none" in files that were converted without one.
        _ if factor == 0.0 || factor == 1.0 => Ok(RopeScaling::None),
        None if !keys.metadata.has(&keys.key("rope.scale_linear")) => Ok(RopeScaling::None),
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("yarn") => {
            let original = keys.size("rope.scaling.original_context_length")?.unwrap_or(context_length);
            // The format's factor multiplies the magnitude that YaRN derives from the stretch.
            let attention = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original: original as f64,
                attention_factor: attention * yarn_magnitude(factor, 1.0),
                truncate: true,
            })
        }
        Some(other) => {
            let expected = "none, linear or yarn is expected".to_owned();
            Err(CheckpointFault::KeyValue { key, value: other.to_owned(), expected })
        }
    }
}

/// Tokens that end an answer, as far as the file names them by number.
pub(in crate::checkpoint) fn end_tokens(metadata: &Metadata) -> Result<Vec<u32>, CheckpointFault> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(token_id(metadata, key)?);
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

fn token_id(metadata: &Metadata, key: &str) -> Result<Option<u32>, CheckpointFault> {
    let Some(value) = metadata.integer(key)? else { return Ok(None) };
    u32::try_from(value).map(Some).map_err(|_| CheckpointFault::KeyValue {
        key: key.to_owned(),
        value: value.to_string(),
        expected: "a token id is expected".to_owned(),
    })
}

/// The vocabulary inside the file.
pub(in crate::checkpoint) fn vocabulary(
    metadata: &Metadata,
    file: &[u8],
) -> Result<GgufVocab, CheckpointFault> {
    let owned = |key| Ok::<_, CheckpointFault>(metadata.text(key)?.map(str::to_owned));
    let texts = |key| {
        let texts = metadata.texts(file, key)?;
        Ok::<_, CheckpointFault>(texts.map(|texts| texts.into_iter().map(str::to_owned).collect()))
    };
    let missing = |missing| CheckpointFault::NoTokenizer { missing };
    let types = metadata.integers(file, "tokenizer.ggml.token_type")?.unwrap_or_default();
    Ok(GgufVocab {
        model: owned("tokenizer.ggml.model")?.ok_or_else(|| missing("key tokenizer.ggml.model"))?,
        tokens: texts("tokenizer.ggml.tokens")?.ok_or_else(|| missing("key tokenizer.ggml.tokens"))?,
        merges: texts("tokenizer.ggml.merges")?.ok_or_else(|| missing("key tokenizer.ggml.merges"))?,
        token_types: types.into_iter().map(u32::cast_signed).collect(),
        pre: owned("tokenizer.ggml.pre")?.unwrap_or_default(),
        bos: token_id(metadata, "tokenizer.ggml.bos_token_id")?,
        eos: token_id(metadata, "tokenizer.ggml.eos_token_id")?,
        add_bos: metadata.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
    })
}

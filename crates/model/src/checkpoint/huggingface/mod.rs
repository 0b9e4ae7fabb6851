//! Directories in Hugging Face's layout: `config.json`, `*.safetensors` (one file, or shards named by an index),
//! and the tokenizer's files.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use hawser_device::mapped::MappedFile;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::error::{CheckpointError, CheckpointFault};
use super::tensors::{TensorEntry, TensorTable};
use crate::config::ModelConfig;

/// A small file larger than this is something else.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// What a directory's text files say.
pub(super) struct Described {
    pub(super) config: ModelConfig,
    pub(super) end_tokens: Vec<u32>,
    /// `config.json` as it is, for the digest.
    pub(super) config_text: String,
}

pub(super) fn describe(directory: &Path) -> Result<Described, CheckpointError> {
    let path = directory.join("config.json");
    let config_text = read_text(&path)?;
    let (config, mut end_tokens) = config::parse(&config_text).map_err(|fault| fault.at(&path))?;
    end_tokens.extend(generation_end_tokens(directory)?);
    end_tokens.sort_unstable();
    end_tokens.dedup();
    Ok(Described { config, end_tokens, config_text })
}

fn generation_end_tokens(directory: &Path) -> Result<Vec<u32>, CheckpointError> {
    #[derive(Deserialize)]
    struct Generation {
        eos_token_id: Option<config::TokenIds>,
    }
    let generation: Option<Generation> = read_json(&directory.join("generation_config.json"))?;
    let ids = generation.and_then(|generation| generation.eos_token_id);
    Ok(ids.map(config::TokenIds::into_vec).unwrap_or_default())
}

/// The chat template: its own file in newer checkpoints, a key of `tokenizer_config.json` in older ones.
pub(super) fn chat_template(directory: &Path) -> Result<Option<String>, CheckpointError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Template {
        One(String),
        Named(Vec<Named>),
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        template: String,
    }
    #[derive(Deserialize)]
    struct TokenizerConfig {
        chat_template: Option<Template>,
    }
    let own = directory.join("chat_template.jinja");
    if own.is_file() {
        return read_text(&own).map(Some);
    }
    let config: Option<TokenizerConfig> = read_json(&directory.join("tokenizer_config.json"))?;
    Ok(match config.and_then(|config| config.chat_template) {
        Some(Template::One(text)) => Some(text),
        Some(Template::Named(all)) => all.into_iter().find(|t| t.name == "default").map(|t| t.template),
        None => None,
    })
}

/// Parses a JSON file; `None` where there is none.
fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, CheckpointError> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = read_text(path)?;
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|e| CheckpointFault::Json { reason: e.to_string() }.at(path))
}

pub(super) fn read_text(path: &Path) -> Result<String, CheckpointError> {
    let read = || {
        let bytes = std::fs::metadata(path)?.len();
        if bytes > MAX_TEXT_BYTES {
            let reason = format!("{bytes} bytes are more than such a file has");
            return Err(CheckpointFault::Json { reason });
        }
        Ok(std::fs::read_to_string(path)?)
    };
    read().map_err(|fault: CheckpointFault| fault.at(path))
}

/// The directory's weight files, in a fixed order.
pub(super) fn weight_files(directory: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let single = directory.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let path = directory.join("model.safetensors.index.json");
    let index: Option<Index> = read_json(&path)?;
    let index = index.ok_or_else(|| CheckpointFault::NotACheckpoint.at(directory))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let plain = |name: &&String| Path::new(name).components().count() == 1 && !name.starts_with('.');
    if let Some(odd) = names.iter().find(|name| !plain(name)) {
        let reason = format!("the shard {odd:?} is not a file name");
        return Err(CheckpointFault::Json { reason }.at(path));
    }
    Ok(names.iter().map(|name| directory.join(name)).collect())
}

/// Enters the tensors of a mapped safetensors file into `table` as tensors of the table's file `index`, and says how
/// many bytes of header come before the weights.
pub(super) fn read_header(
    file: &MappedFile,
    index: usize,
    table: &mut TensorTable,
) -> Result<usize, CheckpointFault> {
    let invalid = |e: safetensors::SafeTensorError| CheckpointFault::Safetensors { reason: e.to_string() };
    // Deserialising checks that the tensors' ranges tile the file and match their shapes; it copies no weight.
    let tensors = SafeTensors::deserialize(file).map_err(invalid)?;
    let (header, _) = SafeTensors::read_metadata(file).map_err(invalid)?;
    let begin = file.as_ptr().addr();
    for (name, view) in tensors.iter() {
        let dtype = match view.dtype() {
            Dtype::F32 => GgmlDType::F32,
            Dtype::F16 => GgmlDType::F16,
            Dtype::BF16 => GgmlDType::BF16,
            other => {
                return Err(CheckpointFault::UnknownDtype {
                    tensor: name.to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        let from = view.data().as_ptr().addr() - begin;
        let bytes = from..from + view.data().len();
        table.insert(name, TensorEntry { dtype, shape: view.shape().to_vec(), file: index, bytes })?;
    }
    Ok(header + 8)
}

#[cfg(test)]
mod tests;

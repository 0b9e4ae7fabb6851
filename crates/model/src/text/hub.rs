//! Tokenizer files in the layout of the Hugging Face hub: `tokenizer.json`, and beside it `tokenizer_config.json`. A
//! file may come from anywhere, so what the tokenizer library would trip over is checked here first.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::{DecoderWrapper, PostProcessorWrapper};

use super::bytelevel;
use super::specials::{Special, Specials};
use super::tokenizer::{Parts, TokenBytes, TokenizerError};

/// The parts of `tokenizer.json` that are checked before the library reads it.
#[derive(Deserialize)]
struct Outline {
    model: ModelOutline,
}

#[derive(Deserialize)]
struct ModelOutline {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// Both spellings of a merge.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

impl ModelOutline {
    fn check(&self) -> Result<(), TokenizerError> {
        let kind = self.kind.as_deref().unwrap_or("BPE");
        if kind != "BPE" {
            return Err(TokenizerError::Model { found: kind.to_owned() });
        }
        if self.vocab.is_empty() {
            return Err(TokenizerError::Empty);
        }
        let build = |detail: &str| Err(TokenizerError::Build { detail: detail.to_owned() });
        if self.dropout.is_some_and(|rate| rate != 0.0) {
            return build("model.dropout is set; tokens would be random");
        }
        if self.continuing_subword_prefix.as_deref().is_some_and(|prefix| !prefix.is_empty()) {
            return build("model.continuing_subword_prefix is set; a byte-level BPE has none");
        }
        if self.unk_token.as_ref().is_some_and(|unk| !self.vocab.contains_key(unk)) {
            return build("model.unk_token is not in model.vocab");
        }
        self.merges.iter().enumerate().try_for_each(|(index, merge)| self.check_merge(index, merge))
    }

    fn check_merge(&self, index: usize, merge: &Merge) -> Result<(), TokenizerError> {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Joined(text) => text
                .split_once(' ')
                .ok_or_else(|| TokenizerError::MergeForm { index, merge: text.clone() })?,
        };
        let whole = format!("{left}{right}");
        match [left, right, &whole].into_iter().find(|part| !self.vocab.contains_key(*part)) {
            Some(token) => Err(TokenizerError::MergeToken { index, token: token.to_owned() }),
            None => Ok(()),
        }
    }
}

/// Reads a tokenizer.
pub(super) fn read(path: &Path) -> Result<Parts, TokenizerError> {
    let unreadable = |detail: String| TokenizerError::File { path: path.to_owned(), detail };
    let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    let outline: Outline = serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
    outline.model.check()?;
    let mut engine =
        tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| unreadable(error.to_string()))?;
    if !matches!(engine.get_model(), ModelWrapper::BPE(_)) {
        return Err(TokenizerError::Model { found: "another model".to_owned() });
    }
    check_decoder(engine.get_decoder())?;
    engine.with_padding(None);
    engine.with_truncation(None).map_err(|error| unreadable(error.to_string()))?;

    let specials = specials(&engine);
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let config = Config::read(folder);
    let prefix = engine.encode_fast("", true).map(|e| e.get_ids().to_vec()).unwrap_or_default();
    engine.with_post_processor(None::<PostProcessorWrapper>);
    let named = |name: Option<&str>| name.and_then(|text| engine.token_to_id(text));
    let bos = named(config.token("bos_token")).or_else(|| prefix.first().copied());
    let eos = named(config.token("eos_token"));
    let adds = prefix.first().is_some_and(|first| Some(*first) == bos);
    let add_bos = bos.is_some() && config.0["add_bos_token"].as_bool().unwrap_or(adds);
    let bytes = token_bytes(&engine);
    Ok(Parts { engine, specials, bytes, bos, eos, add_bos })
}

/// Only a byte-level decoder gives each token bytes of its own.
fn check_decoder(decoder: Option<&DecoderWrapper>) -> Result<(), TokenizerError> {
    let byte_level = match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(other) => serde_json::to_string(other).is_ok_and(|text| text.contains("\"ByteLevel\"")),
        None => false,
    };
    if byte_level {
        Ok(())
    } else {
        Err(TokenizerError::Model { found: "BPE without byte level".to_owned() })
    }
}

fn specials(engine: &tokenizers::Tokenizer) -> Specials {
    let added = engine.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special);
    Specials::new(added.map(|(id, token)| Special {
        id,
        text: token.content,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
    }))
}

fn token_bytes(engine: &tokenizers::Tokenizer) -> TokenBytes {
    let added = engine.get_added_tokens_decoder();
    let last = engine.get_vocab(true).into_values().max().unwrap_or(0);
    // An id far beyond the vocabulary is a fault of the file; the table stays bounded by what the file names.
    let last = last.min(u32::try_from(engine.get_vocab_size(true)).unwrap_or(u32::MAX).saturating_mul(2));
    let mut table = TokenBytes::default();
    for id in 0..=last {
        match (added.get(&id), engine.id_to_token(id)) {
            (Some(token), _) => table.push(token.content.as_bytes()),
            (None, Some(text)) => table.push(&bytelevel::decode(&text).unwrap_or_else(|| text.into_bytes())),
            (None, None) => table.push(&[]),
        }
    }
    table
}

/// The file beside `tokenizer.json` that names the begin and end tokens. A missing or broken one says nothing.
struct Config(Value);

impl Config {
    fn read(folder: &Path) -> Self {
        let text = fs::read(folder.join("tokenizer_config.json")).ok();
        Self(text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or(Value::Null))
    }

    /// A token's text, in either of its spellings.
    fn token(&self, name: &str) -> Option<&str> {
        let token = &self.0[name];
        token.as_str().or_else(|| token["content"].as_str())
    }
}

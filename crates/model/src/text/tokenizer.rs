//! The tokenizer of a checkpoint: plain text to tokens, special tokens by name, and the bytes of each token.
//!
//! Two rules keep injected text harmless. [`Tokenizer::encode`] never yields a special token, whatever the text
//! spells; only [`Tokenizer::encode_special`] and the chat template's own markup do. Tokens that a vocabulary defines
//! as ordinary whole words (`<tool_call>` and the like, "user-defined") are matched in any text, as by the reference.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;
use tokenizers::tokenizer::{NormalizedString, Normalizer};

use super::hub;
use super::specials::{Special, Specials};
use super::vocab::GgufVocab;

/// Why there is no tokenizer.
#[derive(Debug, Error)]
pub enum TokenizerError {
    #[error("tokenizer file {path} cannot be read: {detail}")]
    File { path: PathBuf, detail: String },
    #[error("tokenizer model {found:?} is not supported; a byte-level BPE (gpt2) is needed")]
    Model { found: String },
    #[error(
        "pre-tokenizer {found:?} is not known; supported are smollm, qwen2, llama-bpe, gpt-2 and default"
    )]
    PreTokenizer { found: String },
    #[error("tokenizer.ggml.tokens is empty; the file has no vocabulary")]
    Empty,
    #[error("tokenizer.ggml.token_type has {types} entries for {tokens} tokens")]
    Types { tokens: usize, types: usize },
    #[error("the {name} token is {id}, outside the vocabulary of {tokens} tokens")]
    Id { name: &'static str, id: u32, tokens: usize },
    #[error("token {token:?} is in the vocabulary twice")]
    Duplicate { token: String },
    #[error("merge {index} is {merge:?}; two tokens with a space between are expected")]
    MergeForm { index: usize, merge: String },
    #[error("merge {index} needs the token {token:?}, which the vocabulary lacks")]
    MergeToken { index: usize, token: String },
    #[error("the tokenizer cannot be built: {detail}")]
    Build { detail: String },
}

impl Coded for TokenizerError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// The bytes of every token, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenBytes {
    data: Vec<u8>,
    /// End of each token's bytes in `data`.
    ends: Vec<u32>,
}

impl TokenBytes {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(u32::try_from(self.data.len()).unwrap_or(u32::MAX));
    }

    fn of(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        self.data.get(start..end)
    }
}

/// What a tokenizer is made of.
pub(super) struct Parts {
    pub(super) engine: tokenizers::Tokenizer,
    pub(super) specials: Specials,
    pub(super) bytes: TokenBytes,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
}

/// Turns text into tokens and tokens into bytes. Cheap to clone; clones share the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    parts: Arc<Parts>,
    /// Sorted.
    ends: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Parts { bos, eos, add_bos, .. } = &*self.parts;
        write!(
            f,
            "Tokenizer {{ tokens: {}, bos: {bos:?}, eos: {eos:?}, add_bos: {add_bos} }}",
            self.vocab_size()
        )
    }
}

/// Special tokens that end a turn in the model families served here, besides the checkpoint's own end token.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
];

impl Tokenizer {
    /// Reads `tokenizer.json`; `tokenizer_config.json` beside it, where present, names the begin and end tokens.
    ///
    /// # Errors
    /// [`TokenizerError`] for a file that cannot be read or is no byte-level BPE.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        hub::read(path).map(Self::from_parts)
    }

    /// Rebuilds the tokenizer from the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// [`TokenizerError`] names what is missing, unknown or contradictory.
    pub fn from_vocab(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        vocab.into_parts().map(Self::from_parts)
    }

    fn from_parts(mut parts: Parts) -> Self {
        // Special tokens are found by `specials` alone; inside the engine their text is ordinary text.
        parts.engine.set_encode_special_tokens(true);
        let named = parts.specials.iter().filter(|s| TURN_ENDS.contains(&s.text.as_str())).map(|s| s.id);
        let ends: Vec<u32> = named.chain(parts.eos).collect();
        Self { parts: Arc::new(parts), ends: Vec::new() }.with_end_ids(ends)
    }

    /// Adds tokens that end a turn, such as the `eos_token_id` list of a generation config.
    #[must_use]
    pub fn with_end_ids(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.ends.extend(ids);
        self.ends.sort_unstable();
        self.ends.dedup();
        self
    }

    /// Tokens of plain text. What spells a special token is ordinary text here. No begin token is added.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        if text.is_empty() {
            return Vec::new();
        }
        let encoding = self.parts.engine.encode_fast(text, false);
        encoding.expect("a checked byte-level BPE has an answer for every text").get_ids().to_vec()
    }

    /// Tokens of text in which special tokens are meant: for prompts written by the operator, never for messages.
    #[must_use]
    pub fn encode_special(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        for part in self.split(text) {
            match part {
                Part::Plain(text) => ids.extend(self.encode(text)),
                Part::Special(special) => ids.push(special.id),
            }
        }
        ids
    }

    /// The same tokens with exactly one begin token in front, where the model wants one.
    #[must_use]
    pub fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.leading_bos().filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// The bytes a token adds to the text: none for special tokens and for ids outside the vocabulary.
    #[must_use]
    pub fn text_bytes(&self, id: u32) -> &[u8] {
        if self.is_special(id) { &[] } else { self.token_bytes(id).unwrap_or_default() }
    }

    /// The bytes a token stands for, the name of a special token included; `None` outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.parts.bytes.of(id)
    }

    /// Text of the tokens, special ones left out. Bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.text_bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of ids, from 0, that the vocabulary names.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.parts.bytes.ends.len()
    }

    /// Ids of the special tokens.
    #[must_use]
    pub fn special_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.parts.specials.iter().map(|s| s.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether the token is a special one.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.specials.by_id(id).is_some()
    }

    /// The special token of this exact text.
    #[must_use]
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.parts.specials.iter().find(|s| s.text == text).map(|s| s.id)
    }

    /// Whether the token ends a turn.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Every token that ends a turn, sorted.
    #[must_use]
    pub fn end_ids(&self) -> &[u32] {
        &self.ends
    }

    /// The begin token, whether or not texts get one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The checkpoint's end token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// Whether every sequence starts with the begin token.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.leading_bos().is_some()
    }

    pub(super) fn leading_bos(&self) -> Option<u32> {
        self.parts.bos.filter(|_| self.parts.add_bos)
    }

    pub(super) fn specials(&self) -> &Specials {
        &self.parts.specials
    }

    /// The form of plain text that the tokenizer reads: two texts of one form have the same tokens.
    pub(super) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.parts.engine.get_normalizer() {
            Some(normalizer) if !text.is_ascii() => {
                let mut form = NormalizedString::from(text);
                match normalizer.normalize(&mut form) {
                    Ok(()) => Cow::Owned(form.get().to_owned()),
                    Err(_) => Cow::Borrowed(text),
                }
            }
            _ => Cow::Borrowed(text),
        }
    }

    /// Cuts text at the special tokens it spells.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<Part<'t, '_>> {
        let mut parts = Vec::new();
        let mut from = 0;
        while let Some((at, special)) = self.parts.specials.find(text, from) {
            let before = &text[from..at];
            let before = if special.lstrip { before.trim_end() } else { before };
            if !before.is_empty() {
                parts.push(Part::Plain(before));
            }
            parts.push(Part::Special(special));
            from = at + special.text.len();
            if special.rstrip {
                from = text.len() - text[from..].trim_start().len();
            }
        }
        if from < text.len() {
            parts.push(Part::Plain(&text[from..]));
        }
        parts
    }
}

/// A piece of text with special tokens.
pub(super) enum Part<'t, 's> {
    Plain(&'t str),
    Special(&'s Special),
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;

//! A tokenizer rebuilt from the vocabulary inside a GGUF file. Everything is checked before it is built, because a
//! file from elsewhere may say anything.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper};

use super::bytelevel;
use super::pretokenizer::PreTokenizer;
use super::specials::{Special, Specials};
use super::tokenizer::{Parts, TokenBytes, TokenizerError};

/// What a GGUF file says about its vocabulary (`tokenizer.ggml.*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgufVocab {
    /// Text of each token, by id; byte-level characters for ordinary ones.
    pub tokens: Vec<String>,
    /// Kind of each token: 1 ordinary, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all ordinary.
    pub token_types: Vec<i32>,
    /// Merges in order of rank, as "left right".
    pub merges: Vec<String>,
    /// Name of the pre-tokenizer; empty where the file has none.
    pub pre: String,
    /// Kind of tokenizer; `gpt2` is byte-level BPE.
    pub model: String,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Every text begins with `bos`.
    pub add_bos: bool,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Longest special token in bytes.
const MAX_SPECIAL_BYTES: usize = 1024;

impl GgufVocab {
    /// One token for every byte, whose id is the byte, and then the special tokens `names`; the last of them ends a
    /// turn. For engines without a checkpoint.
    #[must_use]
    pub fn of_bytes(names: &[&str]) -> Self {
        let mut tokens: Vec<String> = bytelevel::alphabet().into_iter().map(String::from).collect();
        let mut token_types = vec![1; tokens.len()];
        tokens.extend(names.iter().map(|&name| name.to_owned()));
        token_types.resize(tokens.len(), CONTROL);
        let eos = tokens.len().checked_sub(1).and_then(|last| u32::try_from(last).ok());
        Self {
            tokens,
            token_types,
            pre: "gpt-2".to_owned(),
            model: "gpt2".to_owned(),
            eos,
            ..Self::default()
        }
    }

    fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(1)
    }

    fn check(&self) -> Result<(), TokenizerError> {
        if self.model != "gpt2" {
            return Err(TokenizerError::Model { found: self.model.clone() });
        }
        if self.tokens.is_empty() {
            return Err(TokenizerError::Empty);
        }
        if !self.token_types.is_empty() && self.token_types.len() != self.tokens.len() {
            let (tokens, types) = (self.tokens.len(), self.token_types.len());
            return Err(TokenizerError::Types { tokens, types });
        }
        for (name, id) in [("bos", self.bos), ("eos", self.eos)] {
            if let Some(id) = id.filter(|id| *id as usize >= self.tokens.len()) {
                return Err(TokenizerError::Id { name, id, tokens: self.tokens.len() });
            }
        }
        Ok(())
    }

    /// Entries that merging may produce. Control tokens are left out, so that no text can spell one.
    fn entries(&self) -> Result<Vocab, TokenizerError> {
        let mut entries = Vocab::default();
        for (id, text) in (0u32..).zip(&self.tokens) {
            let kind = self.kind(id as usize);
            if matches!(kind, CONTROL | UNUSED) {
                continue;
            }
            if entries.insert(text.clone(), id).is_some() {
                return Err(TokenizerError::Duplicate { token: text.clone() });
            }
        }
        Ok(entries)
    }

    fn pairs(&self, entries: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
        let mut pairs = Vec::with_capacity(self.merges.len());
        let mut joined = String::new();
        for (index, merge) in self.merges.iter().enumerate() {
            let Some((left, right)) = merge.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty())
            else {
                return Err(TokenizerError::MergeForm { index, merge: merge.clone() });
            };
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            for part in [left, right, joined.as_str()] {
                if !entries.contains_key(part) {
                    return Err(TokenizerError::MergeToken { index, token: part.to_owned() });
                }
            }
            pairs.push((left.to_owned(), right.to_owned()));
        }
        Ok(pairs)
    }

    fn specials(&self) -> Specials {
        let control = (0u32..)
            .zip(&self.tokens)
            .filter(|(id, text)| self.kind(*id as usize) == CONTROL && text.len() <= MAX_SPECIAL_BYTES);
        Specials::new(control.map(|(id, text)| Special {
            id,
            text: text.clone(),
            lstrip: false,
            rstrip: false,
        }))
    }

    fn bytes(&self) -> TokenBytes {
        let mut table = TokenBytes::default();
        for (id, text) in self.tokens.iter().enumerate() {
            match self.kind(id) {
                UNUSED => table.push(&[]),
                CONTROL | USER_DEFINED => table.push(text.as_bytes()),
                _ => table.push(&bytelevel::decode(text).unwrap_or_else(|| text.clone().into_bytes())),
            }
        }
        table
    }

    /// Builds what a tokenizer is made of.
    pub(super) fn into_parts(self) -> Result<Parts, TokenizerError> {
        self.check()?;
        let pre = PreTokenizer::by_name(&self.pre)?;
        let entries = self.entries()?;
        let merges = self.pairs(&entries)?;
        let build = |error: Box<dyn std::error::Error + Send + Sync>| TokenizerError::Build {
            detail: error.to_string(),
        };
        let model = BPE::builder().vocab_and_merges(entries, merges).ignore_merges(pre.ignores_merges());
        let mut engine = tokenizers::Tokenizer::new(model.build().map_err(build)?);
        if pre.normalizes() {
            engine.with_normalizer(Some(NormalizerWrapper::NFC(NFC))).map_err(build)?;
        }
        engine.with_pre_tokenizer(Some(pre.build()?));
        engine.with_decoder(None::<DecoderWrapper>);
        let whole = self.tokens.iter().enumerate().filter(|(id, _)| self.kind(*id) == USER_DEFINED);
        let whole: Vec<_> =
            whole.map(|(_, text)| AddedToken::from(text.clone(), false).normalized(false)).collect();
        if !whole.is_empty() {
            engine.add_tokens(whole).map_err(build)?;
        }
        let (specials, bytes) = (self.specials(), self.bytes());
        Ok(Parts { engine, specials, bytes, bos: self.bos, eos: self.eos, add_bos: self.add_bos })
    }
}

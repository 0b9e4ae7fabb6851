//! Pre-tokenizers by the name that a GGUF file gives them: how text is cut into words before byte-pair merging.
//! The patterns are those of the reference tokenizers of the model families.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::tokenizer::TokenizerError;

/// How a family cuts text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// GPT-2's pattern.
    Gpt2,
    /// Single digits first, then GPT-2's pattern.
    SmolLm,
    Qwen2,
    Llama3,
}

/// Contractions in any case, letters with one leading sign, single digits, signs with line ends, line ends, white space.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen2's, but digits in groups of up to three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl PreTokenizer {
    /// # Errors
    /// [`TokenizerError::PreTokenizer`] for a name that no rule is known for: guessing one would give wrong tokens.
    pub(super) fn by_name(name: &str) -> Result<Self, TokenizerError> {
        match name {
            "" | "default" | "gpt-2" | "gpt2" => Ok(Self::Gpt2),
            "smollm" => Ok(Self::SmolLm),
            "qwen2" | "deepseek-r1-qwen" => Ok(Self::Qwen2),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(Self::Llama3),
            other => Err(TokenizerError::PreTokenizer { found: other.to_owned() }),
        }
    }

    /// Whether text is brought to Unicode form C first.
    pub(super) const fn normalizes(self) -> bool {
        matches!(self, Self::Qwen2)
    }

    /// Whether a word that is a vocabulary entry is taken whole, before any merge.
    pub(super) const fn ignores_merges(self) -> bool {
        matches!(self, Self::Llama3)
    }

    pub(super) fn build(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let split = |pattern: &str| {
            Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| TokenizerError::Build { detail: error.to_string() })
        };
        let bytes = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
        Ok(match self {
            Self::Gpt2 => bytes(true),
            Self::SmolLm => Sequence::new(vec![Digits::new(true).into(), bytes(true)]).into(),
            Self::Qwen2 => Sequence::new(vec![split(QWEN2)?.into(), bytes(false)]).into(),
            Self::Llama3 => Sequence::new(vec![split(LLAMA3)?.into(), bytes(false)]).into(),
        })
    }
}

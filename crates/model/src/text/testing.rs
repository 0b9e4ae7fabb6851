//! A small vocabulary for tests: all bytes, a few merges, three special tokens and one user-defined word.

use super::bytelevel;
use super::{GgufVocab, Tokenizer};

pub(super) const START: u32 = 0;
pub(super) const END: u32 = 1;
/// The name of `<|e|>` begins with nothing of another, but `<|e|><x>` is a longer special token.
pub(super) const LONG: u32 = 2;
pub(super) const SHORT: u32 = 3;
/// `<w>`, an ordinary whole word.
pub(super) const WORD: u32 = 4;

pub(super) fn vocab() -> GgufVocab {
    let mut tokens: Vec<String> =
        ["<|s|>", "<|end|>", "<|e|><x>", "<|e|>", "<w>"].map(str::to_owned).to_vec();
    let mut token_types = vec![3, 3, 3, 3, 4];
    tokens.extend(bytelevel::alphabet().into_iter().map(String::from));
    let merges =
        ["h e", "l l", "he ll", "hell o", "Ġ hello", "a b", "ab c", "Ċ Ċ", "< |", "e n", "en d", "| >"];
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    token_types.resize(tokens.len(), 1);
    GgufVocab {
        tokens,
        token_types,
        merges: merges.map(str::to_owned).to_vec(),
        pre: "smollm".to_owned(),
        model: "gpt2".to_owned(),
        bos: Some(START),
        eos: Some(END),
        add_bos: false,
    }
}

pub(super) fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocab(vocab()).unwrap()
}

//! A rendered conversation: its text, its marked form and its tokens.

use super::marked::{self, Piece};
use super::tokenizer::Tokenizer;

/// A conversation as the model reads it.
///
/// The begin token stands in front exactly once where the model wants one, whether or not the template writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The marked form: equal for two histories that are the same to the model, and unambiguous.
    pub marked: String,
    text: String,
    pieces: Vec<Piece>,
}

impl Rendered {
    /// From a template's output, in which text from messages is guarded.
    pub(super) fn from_output(tokenizer: &Tokenizer, output: &str) -> Self {
        let mut pieces = marked::parse(tokenizer, output);
        let bos = tokenizer.leading_bos().map(Piece::Special);
        if let Some(bos) = bos.filter(|bos| pieces.first() != Some(bos)) {
            pieces.insert(0, bos);
        }
        let marked = marked::write(tokenizer.specials(), &pieces);
        Self { marked, text: marked::unguard(output).into_owned(), pieces }
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What the template wrote, as the reference renderer writes it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tokens: the template's special tokens as such, everything between as plain text.
    #[must_use]
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        marked::encode(tokenizer, &self.pieces)
    }

    /// The tokens, with as much as possible of the front taken over from `log`, the tokens a session holds.
    ///
    /// A model may have written text in other tokens than encoding gives. What this conversation has in common with
    /// the log therefore keeps the log's tokens: all of the log where the conversation goes on from it, else the part
    /// up to the last special token before the first difference. Only the rest is encoded.
    #[must_use]
    pub fn tokens_after(&self, tokenizer: &Tokenizer, log: &[u32]) -> Vec<u32> {
        let logged = marked::of_tokens(tokenizer, log);
        let common = self.pieces.iter().zip(&logged).take_while(|(ours, theirs)| ours == theirs).count();
        let (kept, from) = if common == logged.len() {
            (log.len(), common)
        } else {
            let is_special = |piece: &&Piece| matches!(piece, Piece::Special(_));
            let specials = logged[..common].iter().filter(is_special).count();
            let from =
                logged[..common].iter().rposition(|piece| is_special(&piece)).map_or(0, |last| last + 1);
            (after_specials(tokenizer, log, specials), from)
        };
        let mut ids = log[..kept].to_vec();
        ids.extend(marked::encode(tokenizer, &self.pieces[from..]));
        ids
    }
}

/// Number of tokens up to and including the `count`-th special one.
fn after_specials(tokenizer: &Tokenizer, log: &[u32], count: usize) -> usize {
    let places = log.iter().enumerate().filter(|(_, id)| tokenizer.is_special(**id));
    count.checked_sub(1).and_then(|last| places.map(|(at, _)| at).nth(last)).map_or(0, |at| at + 1)
}

#[cfg(test)]
#[path = "rendered_tests.rs"]
mod tests;

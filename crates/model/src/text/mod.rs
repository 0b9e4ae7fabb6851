//! Text to tokens and back: tokenizer, chat template, incremental detokenisation and stop strings.
//!
//! Promises: text that arrives in a message never becomes a special token, whatever it spells; encoding what is new
//! after a known history gives that history's tokens back unchanged. Never reads the clock and never decides when a
//! turn ends.

mod bytelevel;
mod detokenizer;
mod hub;
mod marked;
mod outline;
mod pretokenizer;
mod rendered;
mod specials;
mod stop;
mod template;
mod tokenizer;
mod vocab;

pub use detokenizer::Detokenizer;
pub use marked::{encode_marked, mark_tokens};
pub use outline::Outline;
pub use rendered::Rendered;
pub use stop::{StopMatcher, StopStep};
pub use template::{ChatTemplate, RenderError, RenderRequest, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use vocab::GgufVocab;

#[cfg(test)]
mod testing;

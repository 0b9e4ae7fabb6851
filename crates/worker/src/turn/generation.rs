//! From logits to text: sampling, end conditions, detokenisation and stop strings of one turn.
//!
//! All of it is a function of the request, the seed and the tokens, so that an answer that another group began can be
//! taken up after any of its tokens: text that was held back there is held back here.

use std::sync::Arc;

use hawser_common::request::Begun;
use hawser_common::sampling::Sampling;
use hawser_model::sampling::{SampleError, Sampled, Sampler};
use hawser_model::text::Detokenizer;
use hawser_model::text::StopMatcher;
use hawser_model::text::Tokenizer;

use super::error::TurnError;
use super::event::{Finish, TokenPiece};

/// What a generation is made from.
#[derive(Debug)]
pub struct GenerationOptions<'a> {
    /// `None` where the checkpoint has no tokenizer: tokens come without text.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub sampling: &'a Sampling,
    pub seed: u64,
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub max_new: usize,
    /// End tokens of the model.
    pub end_ids: &'a [u32],
}

/// The state of one turn's output. Rolled back by dropping it.
#[derive(Debug)]
pub struct Generation {
    tokenizer: Option<Arc<Tokenizer>>,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    stop_strings: Vec<String>,
    end_ids: Vec<u32>,
    max_new: usize,
    seed: u64,
    tokens: Vec<u32>,
    text: String,
}

impl Generation {
    #[must_use]
    pub fn new(options: &GenerationOptions<'_>) -> Self {
        let sampling = options.sampling;
        let mut sampler = Sampler::new(sampling, options.seed);
        sampler.observe_prompt(options.prompt);
        let mut end_ids = sampling.stop_token_ids.clone();
        if !sampling.ignore_eos {
            end_ids.extend_from_slice(options.end_ids);
        }
        Self {
            tokenizer: options.tokenizer.clone(),
            sampler,
            detokenizer: Detokenizer::new(),
            stop: StopMatcher::new(&sampling.stop),
            stop_strings: sampling.stop.clone(),
            end_ids,
            max_new: options.max_new,
            seed: options.seed,
            tokens: Vec::new(),
            text: String::new(),
        }
    }

    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[must_use]
    pub fn generated(&self) -> usize {
        self.tokens.len()
    }

    /// Chooses the next token. With `Some(finish)` it was the last one, and its piece carries all held-back text.
    ///
    /// # Errors
    /// [`SampleError`] for logits that are no numbers.
    pub fn next(&mut self, logits: &mut [f32]) -> Result<(TokenPiece, Option<Finish>), SampleError> {
        let Sampled { token, logprob, top } = self.sampler.sample(logits)?;
        let (text, finish) = self.take(token);
        Ok((TokenPiece { token, text, logprob, top }, finish))
    }

    /// Takes up an answer that another group began. With `Some` its last token ends it: nothing is to be generated, and
    /// the text is what of its end was not delivered yet.
    ///
    /// # Errors
    /// [`TurnError::Begun`] where these tokens do not give that text, or go on after an end.
    pub fn resume(&mut self, begun: &Begun) -> Result<Option<(Finish, String)>, TurnError> {
        let count = begun.tokens.len();
        for (taken, &token) in (1..).zip(&begun.tokens) {
            self.sampler.observe(token);
            let Some(finish) = self.take(token).1 else { continue };
            if taken < count {
                return Err(TurnError::Begun { tokens: count, reason: "an earlier one ends the answer" });
            }
            // Whether the last piece was delivered with what had been held back depends on why it was the last.
            let rest = self.text.get(begun.text_bytes..).map(str::to_owned);
            let reason = "their text is shorter than what was delivered";
            return rest.map(|rest| Some((finish, rest))).ok_or(TurnError::Begun { tokens: count, reason });
        }
        if self.text.len() != begun.text_bytes {
            return Err(TurnError::Begun { tokens: count, reason: "their text is not what was delivered" });
        }
        Ok(None)
    }

    /// The text that becomes certain with a token, all that was held back if it is the last one.
    fn take(&mut self, token: u32) -> (String, Option<Finish>) {
        self.tokens.push(token);
        let is_end = self.end_ids.contains(&token);
        let mut text = String::new();
        if !is_end && let Some(tokenizer) = &self.tokenizer {
            let characters = self.detokenizer.push(tokenizer.text_bytes(token));
            text = self.stop.push(&characters).emit;
        }
        let finish = self.finish(is_end);
        if finish.is_some() {
            let rest = self.detokenizer.finish();
            text.push_str(&self.stop.push(&rest).emit);
            text.push_str(&self.stop.finish());
        }
        self.text.push_str(&text);
        (text, finish)
    }

    fn finish(&self, is_end: bool) -> Option<Finish> {
        if let Some(index) = self.stop.matched() {
            return Some(Finish::StopString(self.stop_strings[index].clone()));
        }
        if is_end {
            return Some(Finish::Stop);
        }
        (self.tokens.len() >= self.max_new).then_some(Finish::Length)
    }

    /// The generated tokens and their text.
    #[must_use]
    pub fn into_output(self) -> (Vec<u32>, String) {
        (self.tokens, self.text)
    }
}

#[cfg(test)]
#[path = "generation_tests.rs"]
mod tests;

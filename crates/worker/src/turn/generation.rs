//! From logits to text: sampling, end conditions, detokenisation and stop strings of one turn.

use std::sync::Arc;

use hawser_common::sampling::Sampling;
use hawser_model::sampling::{SampleError, Sampled, Sampler};
use hawser_model::text::Detokenizer;
use hawser_model::text::StopMatcher;
use hawser_model::text::Tokenizer;

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
        self.tokens.push(token);
        let is_end = self.end_ids.contains(&token);
        let mut piece = TokenPiece { token, text: String::new(), logprob, top };
        if !is_end && let Some(tokenizer) = &self.tokenizer {
            let characters = self.detokenizer.push(tokenizer.text_bytes(token));
            piece.text = self.stop.push(&characters).emit;
        }
        let finish = self.finish(is_end);
        if finish.is_some() {
            let rest = self.detokenizer.finish();
            piece.text.push_str(&self.stop.push(&rest).emit);
            piece.text.push_str(&self.stop.finish());
        }
        self.text.push_str(&piece.text);
        Ok((piece, finish))
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

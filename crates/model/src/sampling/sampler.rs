//! The sampler of one request.
//!
//! Order: penalties, temperature, top-k, top-p, min-p, draw. Temperature 0 takes the greatest logit after penalties,
//! of equal ones the lowest id. The n-th draw of a seed is a function of both, so the tokens do not depend on batching
//! or on being computed twice. A turn that is rolled back is undone by dropping its sampler.

use hawser_common::sampling::Sampling;
use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

use super::logprobs::Distribution;
use super::penalties::Penalties;
use super::philox;
use super::select::{self, Cutoffs};

/// Why no token was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SampleError {
    #[error("the model's logits are not finite at generated token {step}; the request cannot go on")]
    NotFinite { step: u64 },
    #[error("there are no logits to choose from")]
    Empty,
}

impl Coded for SampleError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Internal
    }
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// Natural logarithm of its probability under the model's own distribution, if asked for.
    pub logprob: Option<f32>,
    /// As many of the most likely tokens as were asked for, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Chooses the tokens of one request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: u64,
    /// Tokens of the answer so far; numbers the draws.
    step: u64,
    temperature: f32,
    cutoffs: Cutoffs,
    penalties: Penalties,
    logprobs: Option<usize>,
}

impl Sampler {
    /// A sampler for valid parameters. The seed is the request's, or one that the server drew; `sampling.seed` is not
    /// read.
    #[must_use]
    pub fn new(sampling: &Sampling, seed: u64) -> Self {
        Self {
            seed,
            step: 0,
            temperature: sampling.temperature,
            cutoffs: Cutoffs {
                top_k: sampling.top_k as usize,
                top_p: f64::from(sampling.top_p),
                min_p: sampling.min_p,
            },
            penalties: Penalties::new(
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
            ),
            logprobs: sampling.logprobs.map(|count| count as usize),
        }
    }

    /// Counts the tokens before the answer for the repetition penalty.
    pub fn observe_prompt(&mut self, tokens: &[u32]) {
        self.penalties.observe_prompt(tokens);
    }

    /// Counts a token of the answer that was not chosen here, as when another group began the answer. What
    /// [`Sampler::sample`] returns is counted already.
    pub fn observe(&mut self, token: u32) {
        self.penalties.observe(token);
        self.step += 1;
    }

    /// Chooses the next token and counts it. `logits` has one value per vocabulary entry; penalties change it.
    ///
    /// # Errors
    /// [`SampleError`] for logits that are no numbers; nothing is counted then.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, SampleError> {
        if logits.is_empty() {
            return Err(SampleError::Empty);
        }
        let not_finite = SampleError::NotFinite { step: self.step };
        let mut most = select::maximum(logits).ok_or(not_finite)?;
        let mut raw = None;
        if let Some(count) = self.logprobs {
            let distribution = Distribution::new(logits, most);
            let before = if self.penalties.are_neutral() { Vec::new() } else { logits.to_vec() };
            raw = Some((distribution, distribution.top(logits, count), before));
        }
        if !self.penalties.are_neutral() {
            self.penalties.apply(logits);
            most = select::maximum(logits).ok_or(not_finite)?;
        }
        let token = if self.temperature > 0.0 {
            select::draw(logits, most, self.temperature, self.cutoffs, philox::uniform(self.seed, self.step))
        } else {
            select::first_of(logits, most).ok_or(not_finite)?
        };
        let (logprob, top) = match raw {
            Some((distribution, top, before)) => {
                let own = if before.is_empty() { &*logits } else { &before };
                (Some(distribution.of(own[token as usize])), top)
            }
            None => (None, Vec::new()),
        };
        self.observe(token);
        Ok(Sampled { token, logprob, top })
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;

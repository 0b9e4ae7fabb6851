//! Sampling parameters and their bounds.

use thiserror::Error;

use crate::{Coded, ErrorCode};

/// Most stop strings of a request.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most stop tokens of a request.
pub const MAX_STOP_TOKENS: usize = 64;
/// Most alternatives that log-probabilities are returned for.
pub const MAX_LOGPROBS: u32 = 20;

/// How the next token is chosen. `validate` holds for every value inside Hawser.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// `None`: drawn by the server.
    pub seed: Option<u64>,
    /// `None`: what the context length leaves.
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// `None`: no log-probabilities; `Some(n)`: the token's and those of n alternatives.
    pub logprobs: Option<u32>,
    /// Go on after the model's end tokens.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            logprobs: None,
            ignore_eos: false,
        }
    }
}

/// A sampling value out of bounds.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum InvalidSampling {
    #[error("{field} is {value}; allowed is {allowed}")]
    Value { field: &'static str, value: f32, allowed: &'static str },
    #[error("max_tokens is 0; at least one token is generated")]
    NoTokens,
    #[error("{found} stop strings; at most {MAX_STOP_STRINGS} are allowed")]
    StopStrings { found: usize },
    #[error("stop string {index} has {bytes} bytes; allowed are 1 to {MAX_STOP_BYTES}")]
    StopLength { index: usize, bytes: usize },
    #[error("{found} stop tokens; at most {MAX_STOP_TOKENS} are allowed")]
    StopTokens { found: usize },
    #[error("logprobs asks for {found} alternatives; at most {MAX_LOGPROBS} are given")]
    Logprobs { found: u32 },
}

impl Coded for InvalidSampling {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl Sampling {
    /// # Errors
    /// [`InvalidSampling`] names the first field out of its bounds. NaN is out of every bound.
    pub fn validate(&self) -> Result<(), InvalidSampling> {
        let check = |field, value: f32, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(InvalidSampling::Value { field, value, allowed }) }
        };
        let within = |value: f32, low: f32, high: f32| (low..=high).contains(&value);
        check("temperature", self.temperature, within(self.temperature, 0.0, 100.0), "0 to 100")?;
        check("top_p", self.top_p, within(self.top_p, f32::MIN_POSITIVE, 1.0), "above 0 up to 1")?;
        check("min_p", self.min_p, within(self.min_p, 0.0, 1.0), "0 to 1")?;
        let repetition = within(self.repetition_penalty, f32::MIN_POSITIVE, 10.0);
        check("repetition_penalty", self.repetition_penalty, repetition, "above 0 up to 10")?;
        check(
            "presence_penalty",
            self.presence_penalty,
            within(self.presence_penalty, -10.0, 10.0),
            "-10 to 10",
        )?;
        check(
            "frequency_penalty",
            self.frequency_penalty,
            within(self.frequency_penalty, -10.0, 10.0),
            "-10 to 10",
        )?;
        if self.max_tokens == Some(0) {
            return Err(InvalidSampling::NoTokens);
        }
        if self.stop.len() > MAX_STOP_STRINGS {
            return Err(InvalidSampling::StopStrings { found: self.stop.len() });
        }
        let bad = self.stop.iter().enumerate().find(|(_, s)| s.is_empty() || s.len() > MAX_STOP_BYTES);
        if let Some((index, text)) = bad {
            return Err(InvalidSampling::StopLength { index, bytes: text.len() });
        }
        if self.stop_token_ids.len() > MAX_STOP_TOKENS {
            return Err(InvalidSampling::StopTokens { found: self.stop_token_ids.len() });
        }
        match self.logprobs {
            Some(found) if found > MAX_LOGPROBS => Err(InvalidSampling::Logprobs { found }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_checked_and_nan_is_never_allowed() {
        let ok = Sampling::default();
        assert_eq!(ok.validate(), Ok(()));
        let field = |s: Sampling| match s.validate() {
            Err(InvalidSampling::Value { field, .. }) => field,
            other => panic!("expected a value error, got {other:?}"),
        };
        assert_eq!(field(Sampling { temperature: -0.1, ..ok.clone() }), "temperature");
        assert_eq!(field(Sampling { temperature: f32::NAN, ..ok.clone() }), "temperature");
        assert_eq!(field(Sampling { top_p: 0.0, ..ok.clone() }), "top_p");
        assert_eq!(field(Sampling { min_p: 1.5, ..ok.clone() }), "min_p");
        assert_eq!(field(Sampling { repetition_penalty: f32::INFINITY, ..ok.clone() }), "repetition_penalty");
        assert_eq!(Sampling { max_tokens: Some(0), ..ok.clone() }.validate(), Err(InvalidSampling::NoTokens));
        assert_eq!(
            Sampling { stop: vec!["a".into(), String::new()], ..ok.clone() }.validate(),
            Err(InvalidSampling::StopLength { index: 1, bytes: 0 })
        );
        assert_eq!(
            Sampling { logprobs: Some(21), ..ok }.validate(),
            Err(InvalidSampling::Logprobs { found: 21 })
        );
    }
}

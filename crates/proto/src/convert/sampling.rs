//! Sampling parameters.

use hawser_common::sampling::Sampling;

use super::InvalidRequest;
use crate::v1;

/// The sampling of a request; what is unset takes its default.
///
/// # Errors
/// [`InvalidRequest::Sampling`] names the first value out of bounds.
pub fn sampling(wire: Option<v1::Sampling>) -> Result<Sampling, InvalidRequest> {
    let Some(wire) = wire else { return Ok(Sampling::default()) };
    let default = Sampling::default();
    let sampling = Sampling {
        temperature: wire.temperature.unwrap_or(default.temperature),
        top_k: wire.top_k.unwrap_or(default.top_k),
        top_p: wire.top_p.unwrap_or(default.top_p),
        min_p: wire.min_p.unwrap_or(default.min_p),
        repetition_penalty: wire.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: wire.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: wire.frequency_penalty.unwrap_or(default.frequency_penalty),
        seed: wire.seed,
        max_tokens: wire.max_tokens,
        stop: wire.stop,
        stop_token_ids: wire.stop_token_ids,
        logprobs: wire.logprobs,
        ignore_eos: wire.ignore_eos,
    };
    sampling.validate()?;
    Ok(sampling)
}

impl From<&Sampling> for v1::Sampling {
    fn from(sampling: &Sampling) -> Self {
        Self {
            temperature: Some(sampling.temperature),
            top_k: Some(sampling.top_k),
            top_p: Some(sampling.top_p),
            min_p: Some(sampling.min_p),
            repetition_penalty: Some(sampling.repetition_penalty),
            presence_penalty: Some(sampling.presence_penalty),
            frequency_penalty: Some(sampling.frequency_penalty),
            seed: sampling.seed,
            max_tokens: sampling.max_tokens,
            stop: sampling.stop.clone(),
            stop_token_ids: sampling.stop_token_ids.clone(),
            logprobs: sampling.logprobs,
            ignore_eos: sampling.ignore_eos,
        }
    }
}

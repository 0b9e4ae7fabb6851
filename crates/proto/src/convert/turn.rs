//! One turn's request, whole.

use hawser_common::request::{Begun, Extent, Input, TurnRequest};

use super::chat::at_most;
use super::{InvalidRequest, conversation, intent, optional_session, retention, sampling};
use crate::v1;

/// Most token ids of one request.
pub const MAX_INPUT_TOKENS: usize = 4 << 20;
/// Longest model name in bytes.
pub const MAX_MODEL_BYTES: usize = 256;

/// Parses a turn: ids, input, sampling and retention, every size bounded.
///
/// # Errors
/// [`InvalidRequest`] names the first field that is wrong.
pub fn turn_request(wire: v1::GenerateRequest) -> Result<TurnRequest, InvalidRequest> {
    let session = optional_session(&wire.session)?;
    optional_model(&wire.model)?;
    let (input, extent) = match wire.input {
        None => {
            let expected = "send a conversation or tokens";
            return Err(InvalidRequest::Missing { field: "input", expected });
        }
        Some(v1::generate_request::Input::Conversation(chat)) => {
            let extent = extent("conversation.extent", chat.extent)?;
            let (messages, tools) = conversation(chat)?;
            (Input::Messages { messages, tools }, extent)
        }
        Some(v1::generate_request::Input::Tokens(tokens)) => {
            let extent = extent("tokens.extent", tokens.extent)?;
            if tokens.ids.is_empty() {
                return Err(InvalidRequest::Empty {
                    field: "tokens.ids",
                    expected: "send at least one token",
                });
            }
            at_most(|| "tokens.ids".to_owned(), tokens.ids.len(), MAX_INPUT_TOKENS, "entries")?;
            (Input::Tokens(tokens.ids), extent)
        }
    };
    if session.is_none() && extent == Extent::Delta {
        let expected = "a delta continues a session: name it";
        return Err(InvalidRequest::Missing { field: "session", expected });
    }
    Ok(TurnRequest {
        session,
        model: wire.model,
        input,
        extent,
        sampling: sampling(wire.sampling)?,
        retention: wire.retention.as_ref().map(retention).transpose()?.unwrap_or_default(),
        intent: wire.intent.map(intent).transpose()?.unwrap_or_default(),
        protected_tokens: wire.protected_tokens,
    })
}

/// The beginning of an answer.
///
/// # Errors
/// [`InvalidRequest::TooMany`] where it is longer than any context.
pub fn begun(wire: v1::ContinueFrom) -> Result<Begun, InvalidRequest> {
    let tokens = wire.token_ids;
    at_most(|| "continue_from.token_ids".to_owned(), tokens.len(), MAX_INPUT_TOKENS, "entries")?;
    Ok(Begun { tokens, text_bytes: usize::try_from(wire.text_bytes).unwrap_or(usize::MAX) })
}

/// How much of the conversation a request carries; unset means the whole.
///
/// # Errors
/// [`InvalidRequest::Unknown`] for a number that is no extent.
pub fn extent(field: &'static str, wire: i32) -> Result<Extent, InvalidRequest> {
    match v1::Extent::try_from(wire) {
        Ok(v1::Extent::Unspecified | v1::Extent::Whole) => Ok(Extent::Whole),
        Ok(v1::Extent::Delta) => Ok(Extent::Delta),
        Err(_) => Err(InvalidRequest::Unknown {
            field: field.to_owned(),
            found: wire.to_string(),
            allowed: "whole (1) or delta (2)".to_owned(),
        }),
    }
}

/// A model name that may be left out.
///
/// # Errors
/// [`InvalidRequest::TooMany`] where it is too long.
pub fn optional_model(text: &str) -> Result<(), InvalidRequest> {
    at_most(|| "model".to_owned(), text.len(), MAX_MODEL_BYTES, "bytes")
}

/// A model name that must be there.
///
/// # Errors
/// [`InvalidRequest`] where it is empty or too long.
pub fn model_name(text: &str) -> Result<String, InvalidRequest> {
    if text.is_empty() {
        return Err(InvalidRequest::Empty { field: "model", expected: "name the model" });
    }
    optional_model(text)?;
    Ok(text.to_owned())
}

impl From<Extent> for v1::Extent {
    fn from(extent: Extent) -> Self {
        match extent {
            Extent::Whole => Self::Whole,
            Extent::Delta => Self::Delta,
        }
    }
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;

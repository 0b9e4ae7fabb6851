//! From a request and the committed conversation to the tokens of the whole prompt.

use std::sync::Arc;

use hawser_common::chat::{Message, Tool};
use hawser_common::request::{Extent, Input};
use hawser_model::text::Tokenizer;
use hawser_model::text::{ChatTemplate, RenderError, RenderRequest};

use super::transcript::{History, Transcript};
use crate::turn::TurnError;

/// The text side of a model.
#[derive(Debug, Clone)]
pub struct Text {
    /// `None`: the checkpoint has no tokenizer, and only token ids are served.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    /// Entries of the embedding: token ids are below it.
    pub vocabulary: usize,
}

/// The whole prompt of a turn, and what the history is once the turn is committed.
#[derive(Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub history: History,
}

/// Renders and tokenises. Work grows with the conversation: run it off the runtime's threads.
///
/// Tokens that the session holds are kept as they are wherever the new conversation goes on from them: text is never
/// tokenised twice, so what the model wrote stays what it wrote.
///
/// # Errors
/// [`TurnError`]: the session's history is missing, the template refuses the messages, or an id is unknown.
pub fn build_prompt(
    text: &Text,
    session: &Transcript,
    input: Input,
    extent: Extent,
) -> Result<Prompt, TurnError> {
    if extent == Extent::Delta && !session.is_kept() {
        return Err(TurnError::SessionLost);
    }
    match input {
        Input::Tokens(ids) => tokens_prompt(text, session, ids, extent),
        Input::Messages { messages, tools } => {
            let (messages, tools) = conversation(session, messages, tools, extent)?;
            let tokens = render(text, session, &messages, &tools)?;
            Ok(Prompt { tokens, history: History::Messages { messages, tools } })
        }
    }
}

fn tokens_prompt(
    text: &Text,
    session: &Transcript,
    ids: Vec<u32>,
    extent: Extent,
) -> Result<Prompt, TurnError> {
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= text.vocabulary) {
        return Err(TurnError::UnknownToken { id, vocabulary: text.vocabulary });
    }
    let tokens = match extent {
        Extent::Whole => ids,
        Extent::Delta => session.tokens.iter().copied().chain(ids).collect(),
    };
    Ok(Prompt { tokens, history: History::Tokens })
}

fn conversation(
    session: &Transcript,
    new: Vec<Message>,
    tools: Vec<Tool>,
    extent: Extent,
) -> Result<(Vec<Message>, Vec<Tool>), TurnError> {
    if extent == Extent::Whole {
        return Ok((new, tools));
    }
    match &session.history {
        History::Empty => Ok((new, tools)),
        History::Tokens => Err(TurnError::NoMessages),
        History::Messages { messages, tools: held } => {
            let all = messages.iter().cloned().chain(new).collect();
            Ok((all, if tools.is_empty() { held.clone() } else { tools }))
        }
    }
}

fn render(
    text: &Text,
    session: &Transcript,
    messages: &[Message],
    tools: &[Tool],
) -> Result<Vec<u32>, TurnError> {
    let (Some(template), Some(tokenizer)) = (&text.template, &text.tokenizer) else {
        return Err(RenderError::NoTemplate.into());
    };
    let request =
        RenderRequest { messages, tools, add_generation_prompt: true, now_unix_s: session.created_unix_s };
    Ok(template.render(tokenizer, &request)?.tokens_after(tokenizer, &session.tokens))
}

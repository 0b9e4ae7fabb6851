//! From a request and the committed conversation to the tokens of the whole prompt.

use std::ops::Range;
use std::sync::Arc;

use hawser_common::chat::{Message, Role, Tool};
use hawser_common::request::{Extent, Input};
use hawser_common::retention::Retention;
use hawser_kv::retention::{Marks, Origin};
use hawser_model::text::{ChatTemplate, Outline, RenderError, RenderRequest, Tokenizer};

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

/// The whole prompt of a turn, and what the session is once the turn is committed.
#[derive(Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub history: History,
    /// Of all tokens.
    pub marks: Marks,
    /// Tokens up to the end of each message; empty for token ids.
    pub ends: Vec<u32>,
    /// π: tokens of the system message and the tools, also where the template alone puts them in.
    pub protected: u32,
    /// What the turn asks: all that follows the last answer.
    pub span: Range<u32>,
    /// What the session has chosen once the turn is committed.
    pub retention: Option<Retention>,
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
    protected: u32,
) -> Result<Prompt, TurnError> {
    if extent == Extent::Delta && !session.is_kept() {
        return Err(TurnError::SessionLost);
    }
    match input {
        Input::Tokens(ids) => tokens_prompt(text, session, ids, extent, protected),
        Input::Messages { messages, tools } => {
            let (messages, tools) = conversation(session, messages, tools, extent)?;
            messages_prompt(text, session, messages, tools)
        }
    }
}

fn tokens_prompt(
    text: &Text,
    session: &Transcript,
    ids: Vec<u32>,
    extent: Extent,
    protected: u32,
) -> Result<Prompt, TurnError> {
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= text.vocabulary) {
        return Err(TurnError::UnknownToken { id, vocabulary: text.vocabulary });
    }
    let tokens = match extent {
        Extent::Whole => ids,
        Extent::Delta => session.tokens.iter().copied().chain(ids).collect(),
    };
    let same = tokens.iter().zip(&session.tokens).take_while(|(a, b)| a == b).count();
    let (common, len) = (position(same), position(tokens.len()));
    let mut marks = session.marks.clone();
    marks.truncate(common);
    let turn = if marks.is_empty() { 0 } else { marks.turn() + 1 };
    marks.extend_to(len, Origin::User, turn);
    let protected = if protected > 0 { protected } else { session.protected };
    let protected = protected.min(len);
    let span = common.max(protected)..len;
    Ok(Prompt { tokens, history: History::Tokens, marks, ends: Vec::new(), protected, span, retention: None })
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

fn messages_prompt(
    text: &Text,
    session: &Transcript,
    messages: Vec<Message>,
    tools: Vec<Tool>,
) -> Result<Prompt, TurnError> {
    let (Some(template), Some(tokenizer)) = (&text.template, &text.tokenizer) else {
        return Err(RenderError::NoTemplate.into());
    };
    let request = RenderRequest {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        now_unix_s: session.created_unix_s,
    };
    let known = known_messages(session, &messages, &tools);
    let outline = template.outline(tokenizer, &request, &session.tokens, known)?;
    let ends = ends(session, &outline);
    let marks = marks(session, &outline, &messages, &ends);
    let end_of = |role| messages.iter().rposition(|message| message.role == role).map(|index| ends[index]);
    let given = match messages.first() {
        Some(first) if first.role == Role::System => ends[0],
        _ => 0,
    };
    // A template may put in a system message of its own, or tools behind the one that was given.
    let protected = given.max(position(outline.preamble));
    let asks = end_of(Role::Assistant).unwrap_or(protected);
    let span = asks..position(outline.tokens.len());
    let history = History::Messages { messages, tools };
    Ok(Prompt { tokens: outline.tokens, history, marks, ends, protected, span, retention: None })
}

/// How many of the messages the session has, their ends known.
fn known_messages(session: &Transcript, messages: &[Message], tools: &[Tool]) -> usize {
    match &session.history {
        History::Messages { messages: held, tools: held_tools } if held_tools == tools => {
            let same = held.iter().zip(messages).take_while(|(a, b)| a == b).count();
            same.min(session.ends.len())
        }
        _ => 0,
    }
}

/// The end of every message: the session's as far as they are known, then the outline's. Those between, of a
/// conversation of hundreds that was never here, end with the first.
fn ends(session: &Transcript, outline: &Outline) -> Vec<u32> {
    let known = |index: usize| session.ends.get(index).copied().unwrap_or_else(|| position(outline.front));
    (0..outline.first).map(known).chain(outline.ends.iter().map(|&end| position(end))).collect()
}

fn marks(session: &Transcript, outline: &Outline, messages: &[Message], ends: &[u32]) -> Marks {
    let known = outline.first.min(session.ends.len());
    let mut marks = session.marks.clone();
    marks.truncate(known.checked_sub(1).map_or(0, |last| ends[last]));
    let answered = known.checked_sub(1).is_some_and(|last| messages[last].role == Role::Assistant);
    let mut turn = marks.turn() + u32::from(answered);
    for (message, &end) in messages.iter().zip(ends).skip(known) {
        marks.extend_to(end, origin(message.role), turn);
        turn += u32::from(message.role == Role::Assistant);
    }
    marks.extend_to(position(outline.tokens.len()), Origin::Template, turn);
    marks
}

fn origin(role: Role) -> Origin {
    match role {
        Role::System => Origin::System,
        Role::User => Origin::User,
        Role::Assistant => Origin::Assistant,
        Role::Tool => Origin::Tool,
    }
}

fn position(index: usize) -> u32 {
    u32::try_from(index).expect("positions are 32-bit")
}

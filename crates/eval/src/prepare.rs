//! From a trajectory to tokens: what a server would hold after each turn, and which tokens are scored.
//!
//! A request per assistant message: the messages before it are rendered by the model's template with the tokens that
//! are there already kept; the message itself is what the model "wrote". Templates of small models know neither tools
//! nor tool calls, so both are written out as text: tools as a list of JSON objects in the system message, a call as
//! `<tool_call>{"name": …, "arguments": …}</tool_call>`.

use std::ops::Range;

use hawser_common::chat::{Message, Role};
use hawser_kv::retention::{Marks, Origin};
use hawser_model::text::{ChatTemplate, RenderError, RenderRequest, Tokenizer};
use serde_json::Value;
use thiserror::Error;

use crate::needles::{Needle, needles};
use crate::traces::{Split, Trace, TraceMessage};

/// Shortest argument value that counts, in bytes: shorter ones occur by chance.
const LEAST_VALUE_BYTES: usize = 4;

/// Why a trajectory cannot be replayed.
#[derive(Debug, Error)]
pub enum PrepareError {
    #[error("trace {id}: {source}")]
    Render { id: String, source: RenderError },
    #[error("trace {id} has no assistant message after another one: there is nothing to score")]
    NoAnswer { id: String },
    #[error("the model has no end token")]
    NoEnd,
}

/// One assistant message and what leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tokens that are new since the last answer, the generation prompt included.
    pub prompt: Range<usize>,
    /// Of it, what the session asks.
    pub span: Range<u32>,
    pub answer: Range<usize>,
    /// Per answer token: whether it is part of an argument value that occurs earlier in the session.
    pub copied: Vec<bool>,
    /// Numbers of the answer that stand in earlier turns.
    pub needles: Vec<Needle>,
}

/// A trajectory in a model's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    pub id: String,
    pub split: String,
    pub tokens: Vec<u32>,
    pub marks: Marks,
    /// π: the system message, tools included.
    pub protected: u32,
    pub requests: Vec<Request>,
}

/// Which tools' schemas stand in the system message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schemas {
    All,
    /// Of tools that the session calls.
    Called,
    None,
}

/// Renders a trajectory for a model, at most `limit` tokens of it.
///
/// # Errors
/// [`PrepareError`] where the template refuses the messages or no answer is left to score.
pub fn prepare(
    trace: &Trace,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    (limit, schemas): (usize, Schemas),
) -> Result<Prepared, PrepareError> {
    let end = tokenizer.eos().ok_or(PrepareError::NoEnd)?;
    let messages = flatten(trace, schemas);
    let mut prepared = Prepared {
        id: trace.id.clone(),
        split: split_name(trace.split).to_owned(),
        tokens: Vec::new(),
        marks: Marks::default(),
        protected: 0,
        requests: Vec::new(),
    };
    let mut marked = 0;
    for (index, message) in messages.iter().enumerate() {
        if message.role != Role::Assistant || index == 0 {
            continue;
        }
        let request = RenderRequest {
            messages: &messages[..index],
            tools: &[],
            add_generation_prompt: true,
            now_unix_s: 0,
        };
        let outline = template
            .outline(tokenizer, &request, &prepared.tokens, marked)
            .map_err(|source| PrepareError::Render { id: trace.id.clone(), source })?;
        let answer = tokenizer.encode(&message.content);
        if outline.tokens.len() + answer.len() + 1 > limit {
            break;
        }
        let start = prepared.tokens.len();
        let turn = u32::try_from(prepared.requests.len()).unwrap_or(u32::MAX);
        for (&end, message) in outline.ends.iter().zip(&messages[outline.first..]) {
            prepared.marks.extend_to(position(end), origin(message.role), turn);
            if message.role == Role::System {
                prepared.protected = position(end);
            }
        }
        let asks = if start == 0 { prepared.protected } else { position(start) };
        let prompt_end = outline.tokens.len();
        prepared.marks.extend_to(position(prompt_end), Origin::Template, turn);
        let text = tokenizer.decode(&outline.tokens);
        let mut copied = copied_tokens(tokenizer, &answer, &values(trace, index), &text);
        copied.push(false);
        prepared.tokens = outline.tokens;
        prepared.tokens.extend(&answer);
        prepared.tokens.push(end);
        let needles = needles(tokenizer, &prepared.tokens[..start], &answer);
        let answer = prompt_end..prepared.tokens.len();
        prepared.marks.extend_to(position(answer.end), Origin::Assistant, turn);
        prepared.requests.push(Request {
            prompt: start..prompt_end,
            span: asks..position(prompt_end),
            answer,
            copied,
            needles,
        });
        marked = index + 1;
    }
    if prepared.requests.len() < 2 {
        return Err(PrepareError::NoAnswer { id: trace.id.clone() });
    }
    Ok(prepared)
}

/// The name of a split in results; a trajectory without one is reported on.
#[must_use]
pub fn split_name(split: Option<Split>) -> &'static str {
    match split {
        Some(Split::Dev) => "dev",
        Some(Split::Test) | None => "test",
    }
}

fn position(index: usize) -> u32 {
    u32::try_from(index).expect("positions are 32-bit")
}

fn origin(role: Role) -> Origin {
    match role {
        Role::System => Origin::System,
        Role::User => Origin::User,
        Role::Assistant => Origin::Assistant,
        Role::Tool => Origin::Tool,
    }
}

/// Messages with tools and calls written out; the first is always a system message.
fn flatten(trace: &Trace, schemas: Schemas) -> Vec<Message> {
    let mut messages: Vec<Message> = trace.messages.iter().map(written_out).collect();
    if messages.first().is_none_or(|first| first.role != Role::System) {
        messages.insert(0, Message::text(Role::System, ""));
    }
    let called = |name: &str| {
        trace.messages.iter().flat_map(|message| &message.tool_calls).any(|call| call.name == name)
    };
    let shown = trace.tools.iter().filter(|tool| match schemas {
        Schemas::All => true,
        Schemas::Called => called(&tool.name),
        Schemas::None => false,
    });
    let tools: Vec<String> = shown.map(|tool| serde_json::json!(tool).to_string()).collect();
    if !tools.is_empty() {
        let system = &mut messages[0].content;
        system.push_str("\n\nYou may call these tools:\n");
        system.push_str(&tools.join("\n"));
    }
    messages
}

fn written_out(message: &TraceMessage) -> Message {
    let mut content = message.content.clone();
    for call in &message.tool_calls {
        if !content.is_empty() {
            content.push('\n');
        }
        let object = serde_json::json!({ "name": call.name, "arguments": call.arguments });
        content.push_str(&format!("<tool_call>{object}</tool_call>"));
    }
    Message::text(message.role, content)
}

/// The argument values of an assistant message, as they are written in it.
fn values(trace: &Trace, index: usize) -> Vec<String> {
    // A system message may have been put in front.
    let shift = usize::from(trace.messages.first().is_none_or(|first| first.role != Role::System));
    let mut found = Vec::new();
    for call in index
        .checked_sub(shift)
        .and_then(|index| trace.messages.get(index))
        .iter()
        .flat_map(|m| &m.tool_calls)
    {
        call.arguments.values().for_each(|value| collect(value, &mut found));
    }
    found.retain(|value| value.len() >= LEAST_VALUE_BYTES);
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, found)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Which answer tokens lie inside a value that occurs in the text before.
fn copied_tokens(tokenizer: &Tokenizer, answer: &[u32], values: &[String], before: &str) -> Vec<bool> {
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(answer.len());
    for &token in answer {
        bytes.extend_from_slice(tokenizer.text_bytes(token));
        ends.push(bytes.len());
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for value in values.iter().filter(|value| before.contains(value.as_str())) {
        ranges.extend(text.match_indices(value.as_str()).map(|(at, found)| at..at + found.len()));
    }
    let mut start = 0;
    let mut copied = Vec::with_capacity(answer.len());
    for end in ends {
        copied.push(ranges.iter().any(|range| start < range.end && range.start < end));
        start = end;
    }
    copied
}

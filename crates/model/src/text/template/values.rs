//! Messages and tools as the values a template sees, text guarded against spelling special tokens.

use std::borrow::Cow;

use hawser_common::chat::{Message, Tool, ToolCall};
use minijinja::{ErrorKind, Value};
use serde_json::Value as Json;

use super::{RenderError, RenderRequest};
use crate::text::marked::guard;
use crate::text::specials::Specials;
use crate::text::tokenizer::Tokenizer;

/// Work that the input is worth to a template: a unit per byte, and one per pair of messages, because templates that
/// collect messages in a list copy the list for each of them.
pub(super) fn work(request: &RenderRequest<'_>) -> u64 {
    let calls = |m: &Message| m.tool_calls.iter().map(|c| c.arguments_json.len()).sum::<usize>();
    let messages: usize = request.messages.iter().map(|m| m.content.len() + calls(m)).sum();
    let tools: usize = request.tools.iter().map(|t| t.description.len() + t.parameters_json.len()).sum();
    let pairs = request.messages.len().saturating_mul(request.messages.len());
    u64::try_from(messages.saturating_add(tools).saturating_add(pairs)).unwrap_or(u64::MAX)
}

/// All that the template sees.
pub(super) fn context(tokenizer: &Tokenizer, request: &RenderRequest<'_>) -> Result<Value, RenderError> {
    let specials = tokenizer.specials();
    let messages = request.messages.iter().enumerate().map(|(index, m)| message(specials, index, m));
    let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
    let tools = request.tools.iter().map(|t| tool(specials, t)).collect::<Result<Vec<Value>, _>>()?;
    let now = request.now_unix_s;

    let mut context = vec![
        ("messages", Value::from(messages)),
        ("tools", if tools.is_empty() { Value::from(()) } else { Value::from(tools) }),
        ("documents", Value::from(())),
        ("add_generation_prompt", Value::from(request.add_generation_prompt)),
        ("strftime_now", Value::from_function(move |format: &str| strftime(now, format))),
    ];
    for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
        if let Some(text) = id.and_then(|id| tokenizer.token_bytes(id)) {
            context.push((name, Value::from(String::from_utf8_lossy(text).into_owned())));
        }
    }
    Ok(Value::from_pairs(context))
}

fn strftime(unix_s: i64, format: &str) -> Result<String, minijinja::Error> {
    let wrong = |detail: String| minijinja::Error::new(ErrorKind::InvalidOperation, detail);
    let time = jiff::Timestamp::from_second(unix_s).map_err(|error| wrong(error.to_string()))?;
    let zoned = time.to_zoned_datetime(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &zoned).map_err(|error| wrong(error.to_string()))
}

fn text(specials: &Specials, text: &str) -> Value {
    match guard(specials, text) {
        Cow::Borrowed(same) => Value::from(same),
        Cow::Owned(guarded) => Value::from(guarded),
    }
}

fn message(specials: &Specials, index: usize, message: &Message) -> Result<Value, RenderError> {
    let mut map =
        vec![("role", Value::from(message.role.name())), ("content", text(specials, &message.content))];
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| tool_call(specials, index, call));
        map.push(("tool_calls", Value::from(calls.collect::<Result<Vec<Value>, _>>()?)));
    }
    if let Some(id) = &message.tool_call_id {
        map.push(("tool_call_id", text(specials, id)));
    }
    if let Some(name) = &message.name {
        map.push(("name", text(specials, name)));
    }
    Ok(Value::from_pairs(map))
}

fn tool_call(specials: &Specials, message: usize, call: &ToolCall) -> Result<Value, RenderError> {
    let arguments = parse(&call.arguments_json).map_err(|error| RenderError::Arguments {
        message,
        tool: call.name.clone(),
        detail: error.to_string(),
    })?;
    let function = [("name", text(specials, &call.name)), ("arguments", guarded(specials, &arguments))];
    let mut map = Vec::with_capacity(3);
    if !call.id.is_empty() {
        map.push(("id", text(specials, &call.id)));
    }
    map.push(("type", Value::from("function")));
    map.push(("function", Value::from_pairs(function)));
    Ok(Value::from_pairs(map))
}

/// A tool always has all three keys, so that a template that reads one finds it.
fn tool(specials: &Specials, tool: &Tool) -> Result<Value, RenderError> {
    let parameters = if tool.parameters_json.trim().is_empty() {
        serde_json::json!({ "type": "object", "properties": {} })
    } else {
        parse(&tool.parameters_json)
            .map_err(|error| RenderError::Parameters { tool: tool.name.clone(), detail: error.to_string() })?
    };
    let function = Value::from_pairs([
        ("name", text(specials, &tool.name)),
        ("description", text(specials, &tool.description)),
        ("parameters", guarded(specials, &parameters)),
    ]);
    Ok(Value::from_pairs([("type", Value::from("function")), ("function", function)]))
}

/// JSON text, key order kept; nothing stands for an empty object.
fn parse(json: &str) -> Result<Json, serde_json::Error> {
    if json.trim().is_empty() { Ok(Json::Object(serde_json::Map::new())) } else { serde_json::from_str(json) }
}

/// JSON as a template's value, every text in it guarded.
pub(super) fn guarded(specials: &Specials, json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => {
            number.as_i64().map(Value::from).or_else(|| number.as_u64().map(Value::from)).unwrap_or_else(
                // Every JSON number that is no integer reads as a float.
                || Value::from(number.as_f64().unwrap_or(f64::NAN)),
            )
        }
        Json::String(inner) => text(specials, inner),
        Json::Array(items) => {
            Value::from(items.iter().map(|item| guarded(specials, item)).collect::<Vec<_>>())
        }
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (text(specials, key), guarded(specials, value))))
        }
    }
}

//! Recorded sessions: the format that `docs/traces.md` describes, its reader, and a generator of synthetic ones.
//!
//! Owns the shape of a trajectory. Promises that a [`Trace`] from [`read_traces`] is a conversation that a chat
//! template can render: roles in a legal order, each tool result after the call that it answers. Never renders,
//! tokenises or runs anything.

mod check;
mod read;
pub mod synthetic;

#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod synthetic_tests;

use hawser_common::chat::{Message, Role, Tool, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use check::{MAX_ID_BYTES, MAX_MESSAGES, TraceFault};
pub use read::{MAX_FILE_BYTES, MAX_LINE_BYTES, TraceError, read_traces};

/// Which half of a set a session belongs to: choices are made on one and reported on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Dev,
    Test,
}

/// One recorded session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Names the session in reports; no two of a file are the same.
    pub id: String,
    /// Where the session comes from; reports are grouped by it.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Tools on offer throughout the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<TraceTool>,
    pub messages: Vec<TraceMessage>,
}

/// A tool on offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTool {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// JSON schema of the arguments; empty for none.
    #[serde(default)]
    pub parameters: Map<String, Value>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceMessage {
    pub role: Role,
    #[serde(default)]
    pub content: String,
    /// Calls that an assistant message makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<TraceCall>,
    /// The call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that a tool message comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceCall {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

impl TraceMessage {
    /// A message of text only.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None, name: None }
    }

    /// An assistant message that makes one call and says nothing.
    #[must_use]
    pub fn call(call: TraceCall) -> Self {
        Self { tool_calls: vec![call], ..Self::text(Role::Assistant, "") }
    }

    /// The result of a call.
    #[must_use]
    pub fn result(call: &TraceCall, content: impl Into<String>) -> Self {
        let (id, name) = (call.id.clone(), call.name.clone());
        Self { tool_call_id: Some(id), name: Some(name), ..Self::text(Role::Tool, content) }
    }
}

impl From<&TraceMessage> for Message {
    fn from(message: &TraceMessage) -> Self {
        Self {
            role: message.role,
            content: message.content.clone(),
            tool_calls: message.tool_calls.iter().map(ToolCall::from).collect(),
            tool_call_id: message.tool_call_id.clone(),
            name: message.name.clone(),
        }
    }
}

impl From<&TraceCall> for ToolCall {
    fn from(call: &TraceCall) -> Self {
        Self { id: call.id.clone(), name: call.name.clone(), arguments_json: json_text(&call.arguments) }
    }
}

impl From<&TraceTool> for Tool {
    fn from(tool: &TraceTool) -> Self {
        // An empty schema means that the tool takes nothing, which the vocabulary writes as no text.
        let parameters = (!tool.parameters.is_empty()).then(|| json_text(&tool.parameters));
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters_json: parameters.unwrap_or_default(),
        }
    }
}

/// An object as JSON text, key order kept.
fn json_text(object: &Map<String, Value>) -> String {
    serde_json::to_string(object).expect("a JSON object has text keys, so that writing it cannot fail")
}

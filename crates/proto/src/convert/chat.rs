//! Conversations: messages and tools, bounded in number and size.

use hawser_common::chat::{Message, Role, Tool, ToolCall};

use super::InvalidRequest;
use crate::v1;

/// Most messages of a conversation.
pub const MAX_MESSAGES: usize = 10_000;
/// Most tools on offer.
pub const MAX_TOOLS: usize = 1_024;
/// Most tool calls of one message.
pub const MAX_TOOL_CALLS: usize = 1_024;
/// Most bytes of text of a conversation, tools included.
pub const MAX_CONTENT_BYTES: usize = 16 << 20;

/// The messages and tools of a conversation.
///
/// # Errors
/// [`InvalidRequest`] names the first message or tool that is wrong, by its index.
pub fn conversation(wire: v1::Conversation) -> Result<(Vec<Message>, Vec<Tool>), InvalidRequest> {
    if wire.messages.is_empty() {
        let expected = "send at least one message";
        return Err(InvalidRequest::Empty { field: "messages", expected });
    }
    at_most(|| "messages".to_owned(), wire.messages.len(), MAX_MESSAGES, "entries")?;
    at_most(|| "tools".to_owned(), wire.tools.len(), MAX_TOOLS, "entries")?;
    let bytes = wire.messages.iter().map(message_bytes).sum::<usize>()
        + wire
            .tools
            .iter()
            .map(|t| t.name.len() + t.description.len() + t.parameters_json.len())
            .sum::<usize>();
    at_most(|| "conversation".to_owned(), bytes, MAX_CONTENT_BYTES, "bytes of text")?;
    let messages =
        wire.messages.into_iter().enumerate().map(|(i, m)| message(i, m)).collect::<Result<_, _>>()?;
    let tools = wire.tools.into_iter().enumerate().map(|(i, t)| tool(i, t)).collect::<Result<_, _>>()?;
    Ok((messages, tools))
}

/// The message at `index` of its conversation.
///
/// # Errors
/// [`InvalidRequest`] for an unknown role, tool calls of someone other than the assistant, a `tool_call_id` of
/// something other than a tool's answer, or arguments that are not a JSON object.
pub fn message(index: usize, wire: v1::Message) -> Result<Message, InvalidRequest> {
    let role = role(index, wire.role)?;
    if role != Role::Assistant && !wire.tool_calls.is_empty() {
        let field = format!("messages[{index}].tool_calls");
        return Err(InvalidRequest::Misplaced { field, belongs: "assistant" });
    }
    if role != Role::Tool && !wire.tool_call_id.is_empty() {
        let field = format!("messages[{index}].tool_call_id");
        return Err(InvalidRequest::Misplaced { field, belongs: "tool" });
    }
    at_most(|| format!("messages[{index}].tool_calls"), wire.tool_calls.len(), MAX_TOOL_CALLS, "entries")?;
    let call = |(i, call): (usize, v1::ToolCall)| -> Result<ToolCall, InvalidRequest> {
        json_object(&call.arguments_json, || format!("messages[{index}].tool_calls[{i}].arguments_json"))?;
        Ok(ToolCall { id: call.id, name: call.name, arguments_json: call.arguments_json })
    };
    Ok(Message {
        role,
        content: wire.content,
        tool_calls: wire.tool_calls.into_iter().enumerate().map(call).collect::<Result<_, _>>()?,
        tool_call_id: Some(wire.tool_call_id).filter(|id| !id.is_empty()),
        name: Some(wire.name).filter(|name| !name.is_empty()),
    })
}

/// The tool at `index` of its list.
///
/// # Errors
/// [`InvalidRequest`] for a tool without a name, or parameters that are neither empty nor a JSON object.
pub fn tool(index: usize, wire: v1::Tool) -> Result<Tool, InvalidRequest> {
    if wire.name.is_empty() {
        return Err(InvalidRequest::Empty { field: "tools.name", expected: "each tool needs a name" });
    }
    if !wire.parameters_json.is_empty() {
        json_object(&wire.parameters_json, || format!("tools[{index}].parameters_json"))?;
    }
    Ok(Tool { name: wire.name, description: wire.description, parameters_json: wire.parameters_json })
}

fn role(index: usize, wire: i32) -> Result<Role, InvalidRequest> {
    match v1::Role::try_from(wire) {
        Ok(v1::Role::System) => Ok(Role::System),
        Ok(v1::Role::User) => Ok(Role::User),
        Ok(v1::Role::Assistant) => Ok(Role::Assistant),
        Ok(v1::Role::Tool) => Ok(Role::Tool),
        Ok(v1::Role::Unspecified) | Err(_) => Err(InvalidRequest::Unknown {
            field: format!("messages[{index}].role"),
            found: wire.to_string(),
            allowed: "system (1), user (2), assistant (3) or tool (4)".to_owned(),
        }),
    }
}

fn message_bytes(message: &v1::Message) -> usize {
    let calls = message.tool_calls.iter();
    message.content.len()
        + message.name.len()
        + message.tool_call_id.len()
        + calls.map(|call| call.id.len() + call.name.len() + call.arguments_json.len()).sum::<usize>()
}

/// Parsed in full and thrown away: whoever parses it again must not be the first to find it malformed.
fn json_object(text: &str, field: impl Fn() -> String) -> Result<(), InvalidRequest> {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(InvalidRequest::Json { field: field(), reason: error.to_string() }),
    }
}

pub(super) fn at_most(
    field: impl Fn() -> String,
    found: usize,
    limit: usize,
    unit: &'static str,
) -> Result<(), InvalidRequest> {
    if found <= limit { Ok(()) } else { Err(InvalidRequest::TooMany { field: field(), found, limit, unit }) }
}

impl From<Role> for v1::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
            Role::Tool => Self::Tool,
        }
    }
}

impl From<&Message> for v1::Message {
    fn from(message: &Message) -> Self {
        let call = |call: &ToolCall| v1::ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            arguments_json: call.arguments_json.clone(),
        };
        Self {
            role: v1::Role::from(message.role).into(),
            content: message.content.clone(),
            tool_calls: message.tool_calls.iter().map(call).collect(),
            tool_call_id: message.tool_call_id.clone().unwrap_or_default(),
            name: message.name.clone().unwrap_or_default(),
        }
    }
}

impl From<&Tool> for v1::Tool {
    fn from(tool: &Tool) -> Self {
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters_json: tool.parameters_json.clone(),
        }
    }
}

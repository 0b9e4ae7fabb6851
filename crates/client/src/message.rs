//! Messages as they travel.

use hawser_common::chat::{Message, Role, Tool};
use hawser_proto::v1;

/// What a tool answered to the call `call_id`.
#[must_use]
pub fn tool_result(
    call_id: impl Into<String>,
    tool: impl Into<String>,
    content: impl Into<String>,
) -> Message {
    Message {
        tool_call_id: Some(call_id.into()),
        name: Some(tool.into()),
        ..Message::text(Role::Tool, content)
    }
}

pub(crate) fn conversation(messages: &[Message], tools: &[Tool], extent: v1::Extent) -> v1::Conversation {
    v1::Conversation {
        messages: messages.iter().map(Into::into).collect(),
        tools: tools.iter().map(Into::into).collect(),
        extent: extent.into(),
    }
}

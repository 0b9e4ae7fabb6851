//! Which conversations are taken as a session: a pure check, no IO.
//!
//! Owns the rules on ids, roles and their order, and on calls and their results. Promises that every message is
//! looked at and that the first fault is the one reported. Never repairs a session.

use std::collections::BTreeSet;

use hawser_common::chat::Role;

use super::{Trace, TraceMessage};

/// Longest id of a session, in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Messages of one session.
pub const MAX_MESSAGES: usize = 10_000;

/// Why a line that is well-formed JSON is no session. Messages are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceFault {
    #[error("the id has {bytes} bytes; allowed are 1 to {MAX_ID_BYTES}")]
    Id { bytes: usize },
    #[error("the id {id:?} was used by an earlier line")]
    RepeatedId { id: String },
    #[error("{messages} messages; at most {MAX_MESSAGES} are allowed")]
    Messages { messages: usize },
    #[error("no message of the assistant, so that there is nothing to measure")]
    NothingToMeasure,
    #[error("message {message} is a {role} message; the conversation starts with the user, after at most one system message", role = role.name())]
    Start { message: usize, role: Role },
    #[error("message {message} is a system message; only the first may be one")]
    LateSystem { message: usize },
    #[error("message {message} makes tool calls, but is a {role} message", role = role.name())]
    CallsOfRole { message: usize, role: Role },
    #[error("message {message} has tool_call_id or name, but is a {role} message", role = role.name())]
    ResultOfRole { message: usize, role: Role },
    #[error("message {message} of the assistant has neither content nor tool calls")]
    EmptyAnswer { message: usize },
    #[error("message {message} makes two calls with the id {id:?}")]
    RepeatedCall { message: usize, id: String },
    #[error("message {message} is a tool message without tool_call_id")]
    NoCallId { message: usize },
    #[error("message {message} answers the call {id:?}, which the assistant did not just make")]
    UnknownCall { message: usize, id: String },
    #[error("message {message} comes before the result of the call {id:?}")]
    UnansweredCall { message: usize, id: String },
}

/// Checks a session by itself; whether its id was used before is the reader's to know.
///
/// # Errors
/// The first fault.
pub(super) fn check(trace: &Trace) -> Result<(), TraceFault> {
    if trace.id.is_empty() || trace.id.len() > MAX_ID_BYTES {
        return Err(TraceFault::Id { bytes: trace.id.len() });
    }
    if trace.messages.len() > MAX_MESSAGES {
        return Err(TraceFault::Messages { messages: trace.messages.len() });
    }
    check_start(&trace.messages)?;
    // Calls of the last assistant message that have no result yet.
    let mut open = BTreeSet::new();
    for (index, message) in trace.messages.iter().enumerate() {
        check_fields(index + 1, message)?;
        check_order(index + 1, message, &mut open)?;
    }
    if trace.messages.iter().all(|message| message.role != Role::Assistant) {
        return Err(TraceFault::NothingToMeasure);
    }
    Ok(())
}

/// At most one system message, then the user.
fn check_start(messages: &[TraceMessage]) -> Result<(), TraceFault> {
    let system = usize::from(messages.first().is_some_and(|first| first.role == Role::System));
    match messages.get(system).map(|message| message.role) {
        None => Err(TraceFault::NothingToMeasure),
        Some(Role::User) => Ok(()),
        Some(role) => Err(TraceFault::Start { message: system + 1, role }),
    }
}

/// Fields that belong to another role, and those that are missing.
fn check_fields(number: usize, message: &TraceMessage) -> Result<(), TraceFault> {
    let role = message.role;
    if role != Role::Assistant && !message.tool_calls.is_empty() {
        return Err(TraceFault::CallsOfRole { message: number, role });
    }
    if role != Role::Tool && (message.tool_call_id.is_some() || message.name.is_some()) {
        return Err(TraceFault::ResultOfRole { message: number, role });
    }
    match role {
        Role::System if number > 1 => Err(TraceFault::LateSystem { message: number }),
        Role::Assistant if message.content.is_empty() && message.tool_calls.is_empty() => {
            Err(TraceFault::EmptyAnswer { message: number })
        }
        Role::System | Role::User | Role::Assistant | Role::Tool => Ok(()),
    }
}

/// Results follow the calls that they answer, all of them before anyone speaks again.
fn check_order<'a>(
    number: usize,
    message: &'a TraceMessage,
    open: &mut BTreeSet<&'a str>,
) -> Result<(), TraceFault> {
    if message.role == Role::Tool {
        let Some(id) = message.tool_call_id.as_deref() else {
            return Err(TraceFault::NoCallId { message: number });
        };
        let known = open.remove(id);
        return known
            .then_some(())
            .ok_or_else(|| TraceFault::UnknownCall { message: number, id: id.to_owned() });
    }
    if let Some(id) = open.first() {
        return Err(TraceFault::UnansweredCall { message: number, id: (*id).to_owned() });
    }
    for call in &message.tool_calls {
        if !open.insert(&call.id) {
            return Err(TraceFault::RepeatedCall { message: number, id: call.id.clone() });
        }
    }
    Ok(())
}

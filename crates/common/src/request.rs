//! One turn's request, parsed.

use crate::chat::{Message, Tool};
use crate::ids::SessionId;
use crate::retention::Choice;
use crate::sampling::Sampling;

/// How much of the conversation a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything from the first message.
    Whole,
    /// What is new since the last committed turn.
    Delta,
}

/// What the turn adds or replays.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Messages { messages: Vec<Message>, tools: Vec<Tool> },
    Tokens(Vec<u32>),
}

/// Positions of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Messages by index, from the first of the whole conversation.
    Messages(std::ops::Range<u32>),
    /// Token positions.
    Tokens(std::ops::Range<u32>),
}

/// What the client knows of where the session is going.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// Added to the query memory as if it had been asked; leaves no tokens behind.
    pub text: String,
    /// Kept for certain, up to half the budget.
    pub pin: Vec<Span>,
    /// Marked dead at the turn's prune, for this session only.
    pub release: Vec<Span>,
}

/// The beginning of an answer, which a group generated that was lost: what its reader has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    pub tokens: Vec<u32>,
    /// Length of the text that was delivered with them.
    pub text_bytes: usize,
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnRequest {
    /// `None`: a single request that leaves nothing behind.
    pub session: Option<SessionId>,
    /// Empty where any model will do.
    pub model: String,
    pub input: Input,
    pub extent: Extent,
    pub sampling: Sampling,
    /// What it sets of the session's retention; the rest stays as it is.
    pub retention: Choice,
    /// What the client says of its intent, for this turn's prune.
    pub intent: Intent,
    /// For token ids: tokens at the front that are never evicted.
    pub protected_tokens: u32,
}

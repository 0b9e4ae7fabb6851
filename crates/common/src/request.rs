//! One turn's request, parsed.

use crate::chat::{Message, Tool};
use crate::ids::SessionId;
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

/// Which history the session keeps. Acted on by the retention policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    pub policy: Policy,
    /// Tokens of live history; `None` is unbounded.
    pub budget_tokens: Option<u32>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { policy: Policy::Full, budget_tokens: None }
    }
}

/// Retention policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Keep everything.
    Full,
}

impl Policy {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
        }
    }
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
    /// `None`: keep what the session has.
    pub retention: Option<Retention>,
}

//! The committed part of one session.

use hawser_common::chat::{Message, Role, Tool};
use hawser_common::retention::Retention;
use hawser_kv::retention::{Marks, Origin};
use serde::{Deserialize, Serialize};

use super::prompt::Prompt;

/// How a session's tokens came about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum History {
    /// No turn was committed.
    #[default]
    Empty,
    Messages {
        messages: Vec<Message>,
        tools: Vec<Tool>,
    },
    /// Built from token ids.
    Tokens,
}

/// Ground truth of a session at its owner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    pub history: History,
    /// Every token up to the last one generated, whether or not its row is in the KV cache.
    pub tokens: Vec<u32>,
    /// Who wrote each of the tokens.
    pub marks: Marks,
    /// Tokens up to the end of each message; empty for token ids.
    pub ends: Vec<u32>,
    /// π: tokens of the system message and the tools.
    pub protected: u32,
    pub turns: u32,
    /// As requests have set it; `None`: the group's default.
    pub retention: Option<Retention>,
    /// Made by `OpenSession` or a fork: kept although no turn was committed.
    pub opened: bool,
    /// The term of the group's registration under which the store gave it the session.
    #[serde(skip)]
    pub claimed: Option<u64>,
    /// What `strftime_now` shows in every turn, so that the rendered history does not change between turns.
    pub created_unix_s: i64,
}

impl Transcript {
    /// Takes over a finished turn.
    pub fn commit(&mut self, prompt: Prompt, generated: &[u32], text: &str) {
        self.tokens = prompt.tokens;
        self.tokens.extend_from_slice(generated);
        self.marks = prompt.marks;
        let turn = self.marks.turn();
        let len = u32::try_from(self.tokens.len()).expect("positions are 32-bit");
        self.marks.extend_to(len, Origin::Assistant, turn);
        self.protected = prompt.protected;
        self.retention = prompt.retention;
        self.history = prompt.history;
        self.ends = prompt.ends;
        if let History::Messages { messages, .. } = &mut self.history {
            messages.push(Message::text(Role::Assistant, text));
            self.ends.push(len);
        }
        self.turns += 1;
    }

    /// Whether it could be the transcript of a session, for one that comes from outside; `vocabulary` is the number of
    /// token ids.
    #[must_use]
    pub fn is_sound(&self, vocabulary: usize) -> bool {
        let len = self.marks.len();
        let ends = self.ends.is_sorted() && self.ends.last().is_none_or(|&end| end <= len);
        let messages = match &self.history {
            History::Messages { messages, .. } => messages.len(),
            History::Empty | History::Tokens => 0,
        };
        self.is_kept()
            && self.marks.is_sound()
            && self.tokens.len() == len as usize
            && self.tokens.iter().all(|&token| (token as usize) < vocabulary)
            && ends
            && self.ends.len() == messages
            && self.protected <= len
            && self.retention.as_ref().is_none_or(|retention| retention.validate().is_ok())
    }

    /// Whether there is something that a client may come back to.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.opened || self.turns > 0
    }
}

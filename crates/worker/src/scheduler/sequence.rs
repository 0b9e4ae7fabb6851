//! One request on its way through the scheduler.

use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_kv::SlotMap;

use super::plan::SequenceId;

/// A request as it enters the scheduler.
#[derive(Debug, Clone)]
pub struct Submission {
    pub id: SequenceId,
    /// `None`: nothing is kept when it ends.
    pub session: Option<SessionKey>,
    /// The whole prompt, history included; never empty.
    pub prompt: Vec<u32>,
    /// Most tokens it may generate.
    pub max_new: usize,
    pub deadline: Option<Tick>,
}

/// How far a request's prompt was met by rows that were there already, and how long it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub prompt: usize,
    pub reused: usize,
    pub queued: Duration,
}

/// A request with its tokens and rows. Rows `0..map.len()` are in the KV cache; the tokens from there on are not.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) session: Option<SessionKey>,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) max_new: usize,
    pub(super) deadline: Option<Tick>,
    pub(super) arrived: Tick,
    pub(super) map: SlotMap,
    /// Rows that were there at admission: an abort rolls back to them.
    pub(super) reused: usize,
    /// First admission; a preempted sequence keeps it.
    pub(super) admission: Option<Admission>,
    /// Its reader is slow: it runs again when there is room for a token.
    pub(super) paused: bool,
}

impl Sequence {
    pub(super) fn new(submission: Submission, now: Tick) -> Self {
        Self {
            id: submission.id,
            session: submission.session,
            prompt: submission.prompt.len(),
            tokens: submission.prompt,
            max_new: submission.max_new,
            deadline: submission.deadline,
            arrived: now,
            map: SlotMap::new(),
            reused: 0,
            admission: None,
            paused: false,
        }
    }

    /// Tokens whose rows are not there yet.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.map.len()
    }

    /// Slots it may still ask for.
    pub(super) fn most_slots(&self) -> usize {
        self.prompt + self.max_new
    }

    pub(super) fn expired(&self, now: Tick) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

//! The last changes of a store, by revision: what watchers that keep up are fed from.
//!
//! Bounded. Watchers hold a revision and nothing else, so a slow one costs no memory; once the log has forgotten
//! what it needs next, it is told so and takes a snapshot.

use std::collections::VecDeque;

use crate::store::Event;

#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<Event>,
    /// Revision after the newest event; every event is one revision.
    revision: u64,
    limit: usize,
}

impl EventLog {
    pub(super) fn new(limit: usize) -> Self {
        Self { events: VecDeque::new(), revision: 0, limit: limit.max(1) }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() == self.limit {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.revision += 1;
    }

    /// At most `limit` events after revision `seen`, in order; `None` if some of them are forgotten.
    pub(super) fn after(&self, seen: u64, limit: usize) -> Option<Vec<Event>> {
        let oldest = self.revision - self.events.len() as u64;
        let skip = usize::try_from(seen.checked_sub(oldest)?).ok()?;
        Some(self.events.iter().skip(skip).take(limit).cloned().collect())
    }
}

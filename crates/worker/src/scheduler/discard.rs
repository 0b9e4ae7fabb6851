//! Ending what runs for a session that turned out not to be this group's.

use hawser_common::clock::Tick;
use hawser_kv::SlotMap;

use super::{Scheduler, SequenceId};

impl Scheduler {
    /// Ends a sequence early, as [`Scheduler::abort`] does, and takes back what it has offered to other sessions, but for
    /// its system message. Returns how many slots became free.
    pub fn discard(&mut self, id: SequenceId, now: Tick) -> usize {
        let before = self.pool.free();
        let mut all = self.running.iter().chain(&self.waiting);
        let Some(sequence) = all.find(|sequence| sequence.id == id) else { return 0 };
        let (namespace, tokens) = (sequence.namespace.clone(), sequence.tokens.clone());
        let protected = sequence.keep.protected as usize;
        self.abort(id, now);
        self.tree.unpublish(&namespace, &tokens, protected, &SlotMap::new(), &mut self.pool);
        self.pool.free().saturating_sub(before)
    }
}

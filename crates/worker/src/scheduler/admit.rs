//! Admission: a waiting sequence starts when its whole prompt has room, first come first served.

use hawser_common::clock::Tick;

use super::sequence::Admission;
use super::{Scheduler, Sequence};

impl Scheduler {
    pub(super) fn admit(&mut self, now: Tick) {
        while self.running.len() < self.limits.max_running {
            let Some(next) = self.waiting.front() else { return };
            // Alone it always fits: `submit` refused what is larger than the pool.
            if !self.running.is_empty() && !self.has_room(next) {
                return;
            }
            let Some(sequence) = self.waiting.pop_front() else { return };
            self.start(sequence, now);
        }
    }

    /// Room for the rest of its prompt and one generated token, beside what the running ones were promised.
    fn has_room(&self, next: &Sequence) -> bool {
        let key = next.session.as_ref();
        let reused = key.map_or(0, |key| self.cache.matched(key, &next.tokens));
        let promised: usize = self.running.iter().map(Sequence::pending).sum();
        let needed = next.tokens.len() - reused + 1 + promised;
        let free = self.pool.free();
        free >= needed || free + self.cache.reclaimable(key, &self.pool) >= needed
    }

    fn start(&mut self, mut sequence: Sequence, now: Tick) {
        if let Some(key) = &sequence.session {
            sequence.map = self.cache.take(key, &sequence.tokens, &mut self.pool);
        }
        sequence.reused = sequence.map.len();
        let admission = Admission {
            prompt: sequence.prompt,
            reused: sequence.reused,
            queued: now.since(sequence.arrived),
        };
        sequence.admission.get_or_insert(admission);
        self.running.push(sequence);
    }
}

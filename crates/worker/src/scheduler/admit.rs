//! Admission: a waiting sequence starts when its whole prompt has room, first come first served.

use hawser_common::clock::Tick;
use hawser_kv::retention::{Evidence, PruneLog};
use hawser_model::executor::MemoryId;

use super::cache::{Idle, Left};
use super::plan::RankChange;
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
        let idle = key.and_then(|key| self.cache.find(key));
        let matched = key.map_or(0, |key| self.cache.matched(key, &next.tokens));
        let rows = idle.map_or(0, |idle| idle.map.len().min(matched));
        let shared = if rows == 0 { self.tree.matched(&next.namespace, &next.tokens) } else { 0 };
        let promised: usize = self.running.iter().map(Sequence::promised).sum();
        let prompt = next.tokens.len() - rows.max(shared.min(next.tokens.len() - 1));
        let needed = prompt.min(next.prompt_slots) + 1 + promised;
        self.has_slots(needed, key)
    }

    /// Most slots that a request's prompt holds at once: as far as prunes leave it.
    pub(super) fn prompt_slots(&self, sequence: &Sequence) -> usize {
        let prompt = sequence.prompt;
        let key = sequence.session.as_ref();
        let idle = key.and_then(|key| self.cache.find(key));
        let matched = key.map_or(0, |key| self.cache.matched(key, &sequence.tokens));
        // What the session keeps of what it had, and the most that this takes underway where it is computed again.
        let (kept, underway) = match idle {
            Some(idle) if !idle.log.records().is_empty() => {
                let mut log = idle.log.clone();
                log.truncate(matched);
                (matched - log.dead(), peak(&log))
            }
            Some(_) => (matched, 0),
            None => (0, 0),
        };
        let history = (kept + prompt - matched).max(underway);
        let keep = &sequence.keep;
        let retention = &keep.retention;
        if !(retention.bounded && retention.prunes()) {
            return history;
        }
        // What is forced is never evicted, whatever the budget.
        let asked = (keep.span.end - keep.span.start) as usize;
        let span =
            if retention.span_cap { asked.min(32.max(retention.budget_tokens as usize / 4)) } else { asked };
        let front = retention.sink_tokens.max(keep.protected) as usize;
        let forced = front + span + retention.recent_tokens as usize;
        let budget = (retention.budget_tokens + retention.trigger_tokens) as usize;
        // Of what it had nothing more is evicted before there are new rows.
        history.min(underway.max(budget.max(forced).max(kept) + self.limits.step_tokens))
    }

    fn start(&mut self, mut sequence: Sequence, now: Tick) {
        let idle = sequence.session.as_ref().and_then(|key| self.cache.take(key));
        if let Some(mut idle) = idle {
            idle.cut(&sequence.tokens, &mut self.pool);
            self.cut_archive(idle.archive, idle.tokens.len());
            sequence.held = idle.tokens.len();
            sequence.decided = sequence.held;
            sequence.map = idle.map;
            sequence.log = idle.log;
            sequence.memory = idle.memory;
            sequence.archive = idle.archive;
            sequence.released = idle.released;
            sequence.scores = idle.scores;
        }
        let shared = self.take_shared(&mut sequence, now);
        self.begin_memory(&mut sequence);
        let reused = sequence.map.len().min(sequence.prompt);
        let admission = Admission {
            prompt: sequence.prompt,
            reused,
            dead: (sequence.map.len() - sequence.map.live().len()).min(reused),
            shared: shared.min(reused),
            queued: now.since(sequence.arrived),
        };
        sequence.admission.get_or_insert(admission);
        self.running.push(sequence);
    }

    /// Rows of the tree, where they reach further than the session's own. Only rows before the session's first prune:
    /// later ones must have seen its holes.
    fn take_shared(&mut self, sequence: &mut Sequence, now: Tick) -> usize {
        let most = (sequence.tokens.len() - 1).min(sequence.log.exact());
        let own = sequence.map.len();
        let front = &sequence.tokens[..most];
        if !sequence.map.is_whole() || own >= most || self.tree.matched(&sequence.namespace, front) <= own {
            return 0;
        }
        let slots = self.tree.take(&sequence.namespace, front, now, &mut self.pool);
        sequence.map.clear(&mut self.pool);
        sequence.map.append(&slots);
        slots.len() - own
    }

    /// Says to the ranks that a request begins.
    fn begin_memory(&mut self, sequence: &mut Sequence) {
        let retention = &sequence.keep.retention;
        let decides = Evidence::of(retention.policy) != Evidence::Local || retention.revive;
        if !(retention.prunes() && decides) {
            return;
        }
        let memory = *sequence.memory.get_or_insert_with(|| {
            self.next_memory += 1;
            MemoryId(self.next_memory)
        });
        self.changes.push(RankChange::Begin(memory));
    }

    /// Keeps a session for its next turn, as far as it has tokens for; frees a single request's rows.
    pub(super) fn retire(&mut self, mut sequence: Sequence, now: Tick) {
        self.publish_ended(&sequence, now);
        let Some(key) = sequence.session.take() else {
            sequence.map.clear(&mut self.pool);
            self.forget(Left { memory: sequence.memory, archive: sequence.archive });
            return;
        };
        let pruned = !sequence.log.records().is_empty();
        let idle = Idle {
            namespace: Some(sequence.namespace),
            tokens: sequence.tokens,
            map: sequence.map,
            log: sequence.log,
            memory: sequence.memory,
            archive: sequence.archive,
            released: sequence.released,
            scores: sequence.scores,
            prunes: sequence.keep.retention.prunes() || pruned,
            protected: sequence.keep.protected as usize,
            last_used: now,
        };
        let left = self.cache.insert(key, idle, &mut self.pool);
        left.into_iter().for_each(|left| self.forget(left));
    }

    /// Forgets what a session that is gone had outside its map.
    pub(super) fn forget(&mut self, left: Left) {
        self.changes.extend(left.memory.map(RankChange::Forget));
        left.archive.iter().for_each(|&id| self.archive.forget(id));
    }
}

/// Most slots that a session holds while it is computed again; what comes back later is held until then.
fn peak(log: &PruneLog) -> usize {
    let mut gone = 0;
    let mut peak = 0;
    for record in log.records() {
        peak = peak.max(record.at as usize - gone);
        gone += record.evicted.iter().filter(|&&position| !log.comes_back(record.at, position)).count();
    }
    peak
}

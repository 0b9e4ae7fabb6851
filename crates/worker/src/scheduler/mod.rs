//! Which rows run next: continuous batching with chunked prefill over one slot pool.
//!
//! A pure state machine. `submit` and `abort` change what is wanted, `plan(now)` decides one step and allocates its
//! slots, `advance` takes each sampled token. It promises that every runnable sequence progresses within a bounded
//! number of steps, that a decode row waits for at most one step, and that no slot leaks. It never does IO, reads a
//! clock, or looks at text.
//!
//! Order: running sequences by admission. One-row sequences first (decode), then prefill chunks fill the step's
//! token budget, which is smaller while something decodes. Under pressure: idle sessions are demoted (least recently used first), then the sequence admitted
//! last is preempted (it keeps its tokens and recomputes its rows). The oldest runner is never preempted.

mod admit;
mod cache;
mod plan;
mod sequence;

use std::collections::VecDeque;

use hawser_common::clock::Tick;
use hawser_common::group::Capacity;
use hawser_common::{Coded, ErrorCode, SessionKey, SlotId};
use hawser_kv::{AuditError, SlotPool, audit};
use thiserror::Error;

use cache::SessionCache;
pub use plan::{PlanEntry, SequenceId, StepPlan};
use sequence::Sequence;
pub use sequence::{Admission, Submission};

/// Bounds of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one step.
    pub step_tokens: usize,
    /// Prefill rows of a step that also decodes: what a running answer waits for between two tokens.
    pub mixed_tokens: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Sequences that wait; one more is refused.
    pub max_waiting: usize,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "the request needs {needed} slots and the pool has {usable}: shorten the prompt or lower max_tokens"
    )]
    NeverFits { needed: usize, usable: usize },
    #[error("{waiting} requests are waiting already; try again later")]
    QueueFull { waiting: usize },
}

impl Coded for Refusal {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NeverFits { .. } => ErrorCode::Invalid,
            Self::QueueFull { .. } => ErrorCode::Exhausted,
        }
    }
}

/// What becomes of a sequence after its sampled token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    Finish,
}

/// State of one group's batching.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: SlotPool,
    cache: SessionCache,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
}

impl Scheduler {
    /// A scheduler over `slots` slots, the dead slot included.
    #[must_use]
    pub fn new(limits: Limits, slots: usize) -> Self {
        let runs = limits.step_tokens > 0 && limits.mixed_tokens > 0 && limits.max_running > 0;
        assert!(runs, "a step runs at least one row");
        Self {
            limits,
            pool: SlotPool::new(slots),
            cache: SessionCache::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`Refusal`] if it can never fit, or the queue is full.
    pub fn submit(&mut self, submission: Submission, now: Tick) -> Result<(), Refusal> {
        assert!(
            !submission.prompt.is_empty() && submission.max_new > 0,
            "parsed before: there is something to run"
        );
        let sequence = Sequence::new(submission, now);
        let (needed, usable) = (sequence.most_slots(), self.pool.usable());
        if needed > usable {
            return Err(Refusal::NeverFits { needed, usable });
        }
        if self.waiting.len() >= self.limits.max_waiting {
            return Err(Refusal::QueueFull { waiting: self.waiting.len() });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Ends a sequence early and rolls its session back to the rows it had before. Returns whether it was there.
    pub fn abort(&mut self, id: SequenceId, now: Tick) -> bool {
        if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(index);
            return true;
        }
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return false };
        let mut sequence = self.running.remove(index);
        sequence.map.truncate(sequence.reused, &mut self.pool);
        self.retire(sequence, now);
        true
    }

    /// Ends the sequences whose deadline has passed and names them.
    pub fn expire(&mut self, now: Tick) -> Vec<SequenceId> {
        let all = self.waiting.iter().chain(&self.running);
        let late: Vec<SequenceId> = all.filter(|sequence| sequence.expired(now)).map(|s| s.id).collect();
        for &id in &late {
            self.abort(id, now);
        }
        late
    }

    /// Says whether a sequence's reader has room for a token.
    pub fn pause(&mut self, id: SequenceId, paused: bool) {
        if let Some(sequence) = self.running.iter_mut().find(|sequence| sequence.id == id) {
            sequence.paused = paused;
        }
    }

    /// Decides the next step and allocates its slots. Empty: nothing can run now.
    pub fn plan(&mut self, now: Tick) -> StepPlan {
        self.admit(now);
        let mut plan = StepPlan::default();
        self.plan_sequences(true, self.limits.step_tokens, &mut plan);
        let decoding = plan.rows();
        let prefill = if decoding == 0 { self.limits.step_tokens } else { self.limits.mixed_tokens };
        self.plan_sequences(false, self.limits.step_tokens.min(decoding + prefill), &mut plan);
        plan
    }

    /// Adds the sequences that decode, or those that prefill, up to `budget` rows of the whole plan.
    fn plan_sequences(&mut self, decode: bool, budget: usize, plan: &mut StepPlan) {
        let order: Vec<SequenceId> = self.running.iter().map(|sequence| sequence.id).collect();
        for id in order {
            self.plan_sequence(id, decode, budget - plan.rows(), plan);
        }
    }

    fn plan_sequence(&mut self, id: SequenceId, decode: bool, budget: usize, plan: &mut StepPlan) {
        // An earlier entry may have preempted it.
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return };
        let pending = self.running[index].pending();
        let count = pending.min(budget);
        let sample = count == pending;
        if count == 0 || (pending == 1) != decode || (sample && self.running[index].paused) {
            return;
        }
        let Some(slots) = self.take_slots(index, count, plan) else { return };
        let sequence = &mut self.running[index];
        let start = sequence.map.len();
        let first_row = plan.rows();
        let count = slots.len();
        plan.tokens.extend_from_slice(&sequence.tokens[start..start + count]);
        let positions = (start..start + count).map(|p| u32::try_from(p).expect("positions are 32-bit"));
        plan.positions.extend(positions.map(hawser_common::Position));
        plan.slots.extend_from_slice(&slots);
        sequence.map.append(&slots);
        let sample = count == pending;
        plan.entries.push(PlanEntry { sequence: id, rows: first_row..first_row + count, sample });
    }

    /// Up to `count` slots for the sequence at `index`: from the free list, from idle sessions, from sequences
    /// admitted after it that are not in the plan yet. `None` if there is not even one.
    fn take_slots(&mut self, index: usize, count: usize, plan: &StepPlan) -> Option<Vec<SlotId>> {
        while self.pool.free() < count {
            if self.cache.demote(None, &mut self.pool).is_some() {
                continue;
            }
            let last = self.running.len() - 1;
            let planned = plan.entries.iter().any(|entry| entry.sequence == self.running[last].id);
            if last <= index || planned {
                break;
            }
            self.preempt(last);
        }
        let count = count.min(self.pool.free());
        if count == 0 { None } else { self.pool.allocate(count).ok() }
    }

    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        sequence.map.clear(&mut self.pool);
        sequence.reused = 0;
        self.waiting.push_front(sequence);
    }

    /// The live slots each entry's rows see besides their own: its session's history before this step.
    pub fn contexts<'a>(&'a self, plan: &'a StepPlan) -> impl Iterator<Item = &'a [SlotId]> {
        plan.entries.iter().map(|entry| {
            let sequence = self.running.iter().find(|sequence| sequence.id == entry.sequence);
            let live = sequence.map_or(&[][..], |sequence| sequence.map.live());
            &live[..live.len() - entry.rows.len()]
        })
    }

    /// Takes the token sampled for a sequence of the last plan.
    pub fn advance(&mut self, id: SequenceId, token: u32, verdict: Verdict, now: Tick) {
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return };
        self.running[index].tokens.push(token);
        if verdict == Verdict::Finish {
            let sequence = self.running.remove(index);
            self.retire(sequence, now);
        }
    }

    /// Keeps a session's rows for its next turn; frees those of a single request.
    fn retire(&mut self, mut sequence: Sequence, now: Tick) {
        match sequence.session.take() {
            Some(key) => {
                sequence.tokens.truncate(sequence.map.len());
                self.cache.insert(key, sequence.tokens, sequence.map, now, &mut self.pool);
            }
            None => {
                sequence.map.clear(&mut self.pool);
            }
        }
    }

    /// How a sequence was admitted; `None` while it waits for the first time.
    #[must_use]
    pub fn admission(&self, id: SequenceId) -> Option<Admission> {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|sequence| sequence.id == id).and_then(|sequence| sequence.admission)
    }

    /// Gives a new session the rows of another one.
    pub fn fork(&mut self, from: &SessionKey, to: &SessionKey, now: Tick) {
        self.cache.fork(from, to, now, &mut self.pool);
    }

    /// Forgets an idle session. Returns how many slots became free; a second call returns 0.
    pub fn close(&mut self, key: &SessionKey) -> usize {
        self.cache.remove(key, &mut self.pool)
    }

    /// Positions of a session that have a slot.
    #[must_use]
    pub fn live(&self, key: &SessionKey) -> usize {
        let mut running = self.running.iter().filter(|sequence| sequence.session.as_ref() == Some(key));
        running.next().map_or_else(|| self.cache.live(key), |sequence| sequence.map.live().len())
    }

    /// What is left.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Capacity {
            slots_total: self.pool.usable() as u64,
            slots_free: self.pool.free() as u64,
            slots_idle: self.cache.reclaimable(None, &self.pool) as u64,
            sessions: self.cache.len() as u64,
            running: count(self.running.len()),
            queued: count(self.waiting.len()),
        }
    }

    /// Whether anything runs or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Checks the conservation of slots.
    ///
    /// # Errors
    /// [`AuditError`] if a slot leaked or is held twice: a bug.
    pub fn audit(&self) -> Result<(), AuditError> {
        let sequences = self.running.iter().chain(&self.waiting).map(|sequence| &sequence.map);
        audit(&self.pool, sequences.chain(self.cache.maps()))
    }
}

//! Which rows run next: continuous batching with chunked prefill over one slot pool.
//!
//! A pure state machine. `submit` and `abort` change what is wanted, `plan(now)` decides one step and allocates its
//! slots, `advance` takes each sampled token. It promises that every runnable sequence progresses within a bounded
//! number of steps, that a decode row waits for at most one step, and that no slot leaks. It never does IO, reads a
//! clock, or looks at text.
//!
//! Order: running sequences by admission. One-row sequences first (decode), then prefill chunks fill the step's
//! token budget, which is smaller while something decodes: half of it is the oldest prompt's, and the other half goes to
//! those with least left, so that a short prompt does not wait for all of a long one. Under pressure: rows that only the
//! prefix tree holds go first, then idle sessions are demoted (least recently used first), then the sequence admitted
//! last is preempted.
//! Whatever lost its rows keeps its tokens and its prunes, and computes the same rows again. The oldest runner is never
//! preempted.

mod admit;
mod cache;
mod discard;
mod inspect;
mod moving;
mod plan;
mod prune;
mod refill;
mod revive;
mod sequence;
mod share;
mod tables;

use std::collections::{HashMap, VecDeque};

use hawser_common::clock::Tick;
use hawser_common::group::Capacity;
use hawser_common::{Coded, ErrorCode, Position, SessionKey};
use hawser_kv::retention::Origin;
use hawser_kv::{Archive, AuditError, PrefixTree, SlotMap, SlotPool, audit_with_tree};
use hawser_model::executor::MemoryId;
use thiserror::Error;

use cache::{Idle, SessionCache};
pub use inspect::{Inspection, RowState};
pub use moving::{ArrivalId, ArrivalRefused, Leaving, SessionState, Unsound, Weight};
pub use plan::{EntryKind, PlanEntry, RankChange, SequenceId, StepPlan};
use sequence::Sequence;
pub use sequence::{Admission, Keep, Kept, Submission};
use tables::ToldTables;

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
    /// Keep exact rows for other sessions that begin alike.
    pub share_prefixes: bool,
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
    tree: PrefixTree,
    archive: Archive,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// For the next plan.
    changes: Vec<RankChange>,
    told: ToldTables,
    /// Slots of the last plan's hints.
    hints: SlotMap,
    next_memory: u64,
    /// Sessions whose rows are on their way here.
    arrivals: HashMap<ArrivalId, Idle>,
    next_arrival: u64,
}

impl Scheduler {
    /// A scheduler over `slots` slots, the dead slot included, and `archive` more behind them for rows that may come
    /// back.
    #[must_use]
    pub fn new(limits: Limits, slots: usize, archive: usize) -> Self {
        let runs = limits.step_tokens > 0 && limits.mixed_tokens > 0 && limits.max_running > 0;
        assert!(runs, "a step runs at least one row");
        Self {
            limits,
            pool: SlotPool::new(slots),
            cache: SessionCache::default(),
            tree: PrefixTree::new(),
            archive: Archive::new(slots, archive),
            waiting: VecDeque::new(),
            running: Vec::new(),
            changes: Vec::new(),
            told: ToldTables::default(),
            hints: SlotMap::new(),
            next_memory: 0,
            arrivals: HashMap::new(),
            next_arrival: 0,
        }
    }

    /// Takes a request that came at `arrived`: its wait counts from there.
    ///
    /// # Errors
    /// [`Refusal`] if it can never fit, or the queue is full.
    pub fn submit(&mut self, submission: Submission, arrived: Tick) -> Result<(), Refusal> {
        assert!(
            !submission.prompt.is_empty() && submission.max_new > 0,
            "parsed before: there is something to run"
        );
        let mut sequence = Sequence::new(submission, arrived);
        sequence.prompt_slots = self.prompt_slots(&sequence);
        let (needed, usable) = (sequence.prompt_slots + sequence.max_new, self.pool.usable());
        if needed > usable {
            return Err(Refusal::NeverFits { needed, usable });
        }
        if self.waiting.len() >= self.limits.max_waiting {
            return Err(Refusal::QueueFull { waiting: self.waiting.len() });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Ends a sequence early and rolls its session back to the tokens it had before. What a prune of this request
    /// evicted stays evicted: its slots are others' by now. Returns whether the sequence was there.
    pub fn abort(&mut self, id: SequenceId, now: Tick) -> bool {
        let sequence = if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(index)
        } else {
            let index = self.running.iter().position(|sequence| sequence.id == id);
            index.map(|index| self.running.remove(index))
        };
        let Some(mut sequence) = sequence else { return false };
        // One that never ran has taken nothing from its session.
        if sequence.admission.is_some() {
            self.give_up_refill(&mut sequence);
            let held = sequence.held;
            sequence.tokens.truncate(held);
            sequence.map.truncate(held, &mut self.pool);
            sequence.log.truncate(held);
            sequence.scores.truncate(held);
            let released = &mut sequence.released;
            released.truncate(released.partition_point(|position| position.index() < held));
            self.cut_archive(sequence.archive, held);
            self.changes.extend(sequence.memory.map(RankChange::TakeBack));
            self.retire(sequence, now);
        }
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

    /// Says of every running sequence whether its reader has no room for a token.
    pub fn pause(&mut self, is_full: impl Fn(SequenceId) -> bool) {
        self.running.iter_mut().for_each(|sequence| sequence.paused = is_full(sequence.id));
    }

    /// Decides the next step and allocates its slots. Empty: nothing can run now.
    pub fn plan(&mut self, now: Tick) -> StepPlan {
        self.hints.clear(&mut self.pool);
        self.finish_refills();
        self.admit(now);
        let mut plan = StepPlan::default();
        self.plan_sequences(true, self.limits.step_tokens, &mut plan);
        let decoding = plan.rows();
        let prefill = if decoding == 0 { self.limits.step_tokens } else { self.limits.mixed_tokens };
        self.plan_sequences(false, self.limits.step_tokens.min(decoding + prefill), &mut plan);
        plan.changes = self.take_changes();
        self.tell_tables(&mut plan);
        plan
    }

    /// Adds the sequences that decode, or those that prefill, up to `budget` rows of the whole plan.
    fn plan_sequences(&mut self, decode: bool, budget: usize, plan: &mut StepPlan) {
        let left = budget - plan.rows();
        let shares = if decode { vec![left; self.running.len()] } else { self.prefill_shares(left) };
        // What an entry preempts comes after it, so that those before stay where they are.
        for (index, share) in shares.into_iter().enumerate() {
            let Some(sequence) = self.running.get(index) else { return };
            if sequence.refill.is_some() {
                // What comes back is there before the next row, which sees it.
                if !decode {
                    self.plan_refill(index, budget - plan.rows(), plan);
                }
                continue;
            }
            let (start, pending) = (sequence.map.len(), sequence.pending());
            // Rows after a prune that happened before must see its holes: a chunk ends there.
            let before_prune =
                sequence.log.next_from(start + 1).map_or(pending, |next| next.at as usize - start);
            // A hint runs beside the prompt's last row, so that both see the same history.
            let hint = Self::hint_rows(sequence, self.limits.step_tokens);
            let before_hint = if hint > 0 { sequence.prompt - 1 - start } else { 0 };
            let with_hint = hint > 0 && before_hint == 0;
            let chunk = if hint > 0 { pending.min(before_hint.max(1)) } else { pending };
            // So must the rows of a begun answer, of the prune that follows the prompt.
            let before_answer = if start < sequence.prompt { sequence.prompt - start } else { pending };
            let room = share.min(budget - plan.rows());
            let count = chunk.min(before_prune).min(before_answer).min(room);
            let waits = count == pending && sequence.paused;
            let is_decode = pending == 1 || with_hint;
            if count == 0 || is_decode != decode || waits || (with_hint && room <= hint) {
                continue;
            }
            self.make_room(index, if with_hint { count + hint } else { count }, plan);
            if with_hint && self.pool.free() >= count + hint {
                self.plan_hint(index, hint, plan);
            } else if with_hint && index > 0 {
                // Older sequences hold the slots, and will give them back.
                continue;
            }
            self.plan_rows(index, count.min(self.pool.free()), plan);
        }
    }

    /// How many rows each running sequence prefills at most, of `budget` in all: the oldest prompt at least half, and the
    /// others what is left of it, those first that have least to go.
    fn prefill_shares(&self, budget: usize) -> Vec<usize> {
        let mut shares = vec![0; self.running.len()];
        let pending = |index: usize| self.running[index].pending();
        let mut prefills: Vec<usize> = (0..self.running.len()).filter(|&index| pending(index) > 1).collect();
        if prefills.is_empty() {
            return shares;
        }
        let oldest = prefills.remove(0);
        prefills.sort_by_key(|&index| pending(index));
        let mut left = budget - pending(oldest).min(budget.div_ceil(2));
        shares[oldest] = budget - left;
        for index in prefills {
            shares[index] = pending(index).min(left);
            left -= shares[index];
        }
        shares[oldest] += left;
        shares
    }

    /// Adds `count` rows of a sequence, which have room.
    fn plan_rows(&mut self, index: usize, count: usize, plan: &mut StepPlan) {
        let Ok(slots) = self.pool.allocate(count) else { return };
        if slots.is_empty() {
            return;
        }
        let sequence = &mut self.running[index];
        let (start, first_row) = (sequence.map.len(), plan.rows());
        let end = start + count;
        plan.tokens.extend_from_slice(&sequence.tokens[start..end]);
        plan.positions.extend(Sequence::positions(start, count).map(Position));
        plan.slots.extend_from_slice(&slots);
        sequence.map.append(&slots);
        let sample = sequence.pending() == 0;
        self.replay_prunes(index, start);
        let prune = self.prepare_prune(index, end);
        let sequence = &mut self.running[index];
        let live = sequence.map.live().len();
        sequence.kept.peak_live = sequence.kept.peak_live.max(live);
        if start >= sequence.prompt {
            sequence.kept.rows_read += live as u64;
            sequence.kept.rows_full += end as u64;
        }
        plan.entries.push(PlanEntry {
            sequence: sequence.id,
            rows: first_row..first_row + count,
            kind: EntryKind::Next,
            sample,
            observe: Self::observe(sequence, start, count, first_row),
            remember: Self::ends_span(sequence, end),
            prune,
        });
    }

    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        sequence.map.clear(&mut self.pool);
        (sequence.event, sequence.revives, sequence.revival) = (None, None, None);
        // The log has what was to come back: it does when the rows are computed again.
        sequence.refill = None;
        self.changes.extend(sequence.memory.map(RankChange::TakeBack));
        self.waiting.push_front(sequence);
    }

    /// What the ranks are to do before they score: the next plan does not repeat it.
    pub fn take_changes(&mut self) -> Vec<RankChange> {
        std::mem::take(&mut self.changes)
    }

    /// Takes the token sampled for a sequence of the last plan. A prune of that plan is settled before.
    pub fn advance(&mut self, id: SequenceId, token: u32, verdict: Verdict, now: Tick) {
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return };
        let sequence = &mut self.running[index];
        let ends_prompt = sequence.map.len() == sequence.prompt;
        sequence.tokens.push(token);
        let len = u32::try_from(sequence.tokens.len()).expect("positions are 32-bit");
        let turn = sequence.keep.marks.turn();
        sequence.keep.marks.extend_to(len, Origin::Assistant, turn);
        if verdict == Verdict::Finish {
            let mut sequence = self.running.remove(index);
            self.give_up_refill(&mut sequence);
            sequence.tokens.truncate(sequence.map.len());
            self.retire(sequence, now);
        } else if ends_prompt {
            self.publish(index, now);
        }
    }

    /// How a sequence was admitted; `None` while it waits for the first time.
    #[must_use]
    pub fn admission(&self, id: SequenceId) -> Option<Admission> {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|sequence| sequence.id == id).and_then(|sequence| sequence.admission)
    }

    /// What retention did during a running sequence.
    #[must_use]
    pub fn kept(&self, id: SequenceId) -> Kept {
        self.running
            .iter()
            .find(|sequence| sequence.id == id)
            .map(|sequence| sequence.kept)
            .unwrap_or_default()
    }

    /// Gives a new session the rows of another one.
    pub fn fork(&mut self, from: &SessionKey, to: &SessionKey, now: Tick) {
        let Some(source) = self.cache.find(from) else { return };
        let memory = source.memory.map(|from| {
            self.next_memory += 1;
            let to = MemoryId(self.next_memory);
            self.changes.push(RankChange::Fork { from, to });
            to
        });
        let copy = Idle {
            namespace: source.namespace.clone(),
            tokens: source.tokens.clone(),
            map: source.map.share(&mut self.pool),
            log: source.log.clone(),
            scores: source.scores.clone(),
            memory,
            archive: None,
            released: source.released.clone(),
            prunes: source.prunes,
            protected: source.protected,
            last_used: now,
        };
        let left = self.cache.insert(to.clone(), copy, &mut self.pool);
        left.into_iter().for_each(|left| self.forget(left));
    }

    /// Forgets an idle session. Its system message may serve others and stays in the prefix tree; the rest leaves it.
    /// Returns how many slots became free; a second call returns 0.
    pub fn close(&mut self, key: &SessionKey) -> usize {
        let Some(mut idle) = self.cache.take(key) else { return 0 };
        let mut freed = idle.map.clear(&mut self.pool);
        if let Some(namespace) = &idle.namespace {
            let (tokens, none) = (&idle.tokens, SlotMap::new());
            freed += self.tree.unpublish(namespace, tokens, idle.protected, &none, &mut self.pool);
        }
        self.forget(idle.left());
        freed
    }

    /// What runs or waits for a session.
    #[must_use]
    pub fn of_session(&self, key: &SessionKey) -> Vec<SequenceId> {
        let all = self.running.iter().chain(&self.waiting);
        all.filter(|sequence| sequence.session.as_ref() == Some(key)).map(|sequence| sequence.id).collect()
    }

    /// Positions of a session that have a slot.
    #[must_use]
    pub fn live(&self, key: &SessionKey) -> usize {
        let mut running = self.running.iter().filter(|sequence| sequence.session.as_ref() == Some(key));
        let idle = || self.cache.find(key).map_or(0, |idle| idle.map.live().len());
        running.next().map_or_else(idle, |sequence| sequence.map.live().len())
    }

    /// What is left.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let sum =
            |of: fn(&Sequence) -> usize| self.running.iter().chain(&self.waiting).map(of).sum::<usize>();
        Capacity {
            slots_total: self.pool.usable() as u64,
            slots_free: self.pool.free() as u64,
            slots_idle: self.reclaimable(None) as u64,
            slots_reclaimed: (self.cache.vacant() + sum(|sequence| sequence.map.vacant())) as u64,
            slots_reserved: sum(Sequence::reserved) as u64,
            sessions: self.cache.len() as u64,
            running: count(self.running.len()),
            queued: count(self.waiting.len()),
        }
    }

    /// Copies of evicted rows beside the pool.
    #[must_use]
    pub fn archived(&self) -> usize {
        self.archive.used()
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
        let arriving = self.arrivals.values().map(|idle| &idle.map);
        let maps = sequences.chain(self.cache.maps()).chain(arriving).chain([&self.hints]);
        assert!(self.archive.is_sound(), "an archive's slot is in use or free, once");
        assert!(self.cache.is_sound(), "what can be given up under pressure is known");
        audit_with_tree(&self.pool, maps, &self.tree)
    }
}

//! Prune events: when they are due, what is asked of the ranks, and the rewrite of the slot map.

use std::ops::Range;

use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use hawser_kv::retention::{
    Event, Evidence, Observed, PruneRecord, Situation, budget, is_due, local_scores, revival_evidence, select,
};
use hawser_model::executor::{Observe, Recursion};

use super::inspect::Scores;
use super::plan::{EntryKind, PlanEntry, SequenceId, StepPlan};
use super::{Scheduler, Sequence};
use crate::ranks::Scoring;

/// How a policy's memory goes on.
pub(super) fn recursion(retention: &Retention) -> Recursion {
    let decay = retention.memory_decay;
    match retention.policy {
        Policy::IntentQuery => Recursion::Query,
        Policy::IntentMemoryPaper => Recursion::Paper { decay },
        _ => Recursion::Unit { decay },
    }
}

impl Scheduler {
    /// What is remembered of the rows from `start` on; their place in the batch begins at `first_row`.
    pub(super) fn observe(
        sequence: &Sequence,
        start: usize,
        count: usize,
        first_row: usize,
    ) -> Option<Observe> {
        let memory = sequence.memory?;
        let keep = &sequence.keep;
        let rows = Sequence::positions(start, count);
        let mut observed = Observed::of(&keep.retention, &keep.marks, &keep.span, &rows);
        // What the session had is remembered already, also where its rows are computed again.
        observed.mass.retain_mut(|run| {
            run.start = run.start.max(u32::try_from(sequence.held).expect("positions are 32-bit"));
            run.start < run.end
        });
        let in_batch = |range: Range<u32>| {
            let row = |at: u32| first_row + (at.clamp(rows.start, rows.end) - rows.start) as usize;
            row(range.start)..row(range.end)
        };
        let retention = &keep.retention;
        let evidence = match Evidence::of(retention.policy) {
            Evidence::Local | Evidence::Mass if retention.revive => revival_evidence(retention.policy),
            evidence => evidence,
        };
        Some(Observe {
            memory,
            span: in_batch(observed.span),
            hint: false,
            window: in_batch(observed.window),
            restart_window: observed.restart,
            window_rows: if evidence == Evidence::Window { keep.retention.window_rows as usize } else { 0 },
            mass: observed.mass.into_iter().map(in_batch).collect(),
        })
    }

    /// Rows of a hint that are still to be run: as many as a step has room for beside one row, and only where there is a
    /// memory that they could be added to.
    pub(super) fn hint_rows(sequence: &Sequence, step_tokens: usize) -> usize {
        let is_due = sequence.map.len() < sequence.prompt && sequence.map.len() >= sequence.held;
        let counts =
            Evidence::of(sequence.keep.retention.policy) == Evidence::Memory && sequence.memory.is_some();
        if is_due && counts { sequence.keep.hint.len().min(step_tokens.saturating_sub(1)) } else { 0 }
    }

    /// Runs a hint beside the prompt's last row, which is planned next: both see the same history. Its slots are given
    /// back with the next plan.
    pub(super) fn plan_hint(&mut self, index: usize, count: usize, plan: &mut StepPlan) {
        let sequence = &self.running[index];
        let (Some(memory), Ok(slots)) = (sequence.memory, self.pool.allocate(count)) else { return };
        let (start, first_row) = (sequence.map.len(), plan.rows());
        let rows = first_row..first_row + count;
        plan.tokens.extend_from_slice(&sequence.keep.hint[..count]);
        plan.positions.extend(Sequence::positions(start, count).map(Position));
        plan.slots.extend_from_slice(&slots);
        self.hints.append(&slots);
        let observe = Observe {
            memory,
            span: rows.clone(),
            hint: true,
            window: rows.start..rows.start,
            restart_window: false,
            window_rows: 0,
            mass: Vec::new(),
        };
        plan.entries.push(PlanEntry {
            sequence: sequence.id,
            rows,
            kind: EntryKind::Hint,
            sample: false,
            observe: Some(observe),
            remember: None,
            prune: false,
        });
    }

    /// Whether the span ends with the rows up to `end`.
    pub(super) fn ends_span(sequence: &Sequence, end: usize) -> Option<Recursion> {
        let ends = end == sequence.prompt && sequence.memory.is_some();
        ends.then(|| recursion(&sequence.keep.retention))
    }

    /// Prepares the prune that follows a step which ends at `end`, if one is due: after the prompt's last row, and with
    /// `bounded` after any chunk. What has run before decides nothing anew.
    pub(super) fn prepare_prune(&mut self, index: usize, end: usize) -> bool {
        let sequence = &self.running[index];
        let whole = end == sequence.prompt;
        let bounded = sequence.keep.retention.bounded;
        let happened = sequence.log.next_from(end).is_some_and(|record| record.at as usize == end);
        if end > sequence.prompt || !(whole || bounded) || end <= sequence.decided || happened {
            return false;
        }
        self.running[index].decided = end;
        let total = self.pool.usable();
        let used = total - self.pool.free() - self.given_up_first(index);
        let sequence = &mut self.running[index];
        let keep = &sequence.keep;
        let released: Vec<Position> = if whole { released(sequence) } else { Vec::new() };
        let live: Vec<Position> = sequence
            .map
            .live_positions()
            .iter()
            .copied()
            .filter(|position| released.binary_search(position).is_err())
            .collect();
        let budget = budget(&keep.retention, used, total);
        let due = is_due(&keep.retention, budget, live.len());
        let revives = whole && keep.retention.revive && keep.retention.prunes();
        sequence.revives = revives.then_some(budget);
        if !due && released.is_empty() {
            return revives;
        }
        let len = Sequence::positions(end, 0).start;
        let mut event = Event::new(&Situation {
            retention: &keep.retention,
            budget,
            live: &live,
            len,
            protected: keep.protected,
            span: keep.span.start.min(len)..keep.span.end.min(len),
            pins: &keep.pins,
        });
        if !due {
            event.candidates.clear();
        }
        sequence.event = Some(event);
        true
    }

    /// What the ranks score for a sequence's prune; `None` where positions and roles decide.
    #[must_use]
    pub fn scoring(&self, id: SequenceId) -> Option<Scoring> {
        let sequence = self.running.iter().find(|sequence| sequence.id == id)?;
        let (event, memory) = (sequence.event.as_ref()?, sequence.memory?);
        let retention = &sequence.keep.retention;
        let evidence = Evidence::of(retention.policy);
        if evidence == Evidence::Local || event.keep >= event.candidates.len() {
            return None;
        }
        let mut candidates = Vec::with_capacity(event.candidates.len());
        let mut wanted = event.candidates.iter().peekable();
        for (index, position) in (0..).zip(sequence.map.live_positions()) {
            if wanted.next_if_eq(&position).is_some() {
                candidates.push(index);
            }
        }
        let peek = (sequence.map.len() < sequence.prompt).then(|| recursion(retention));
        Some(Scoring {
            memory,
            evidence,
            peek,
            keys: sequence.map.live().to_vec(),
            candidates,
            positions: event.candidates.clone(),
            keep: event.keep,
            pool: retention.pool_positions as usize,
            causal: retention.policy == Policy::SnapKv,
            aggregation: retention.aggregation,
        })
    }

    /// Carries a prune out with the scores of its candidates; without scores, positions and roles decide.
    pub fn settle(&mut self, id: SequenceId, scores: Option<Vec<i64>>) {
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return };
        let sequence = &mut self.running[index];
        let Some(event) = sequence.event.take() else {
            self.prepare_revival(index);
            return;
        };
        let keep = &sequence.keep;
        if let Some(scores) = &scores {
            sequence.scores = Scores::relative(&event.candidates, scores);
        }
        let scores = scores.unwrap_or_else(|| local_scores(&keep.retention, &keep.marks, &event.candidates));
        let mut evicted = select(&keep.retention, &keep.marks, &event, &scores).evicted;
        if sequence.map.len() == sequence.prompt {
            let released = released(sequence);
            sequence.released.extend_from_slice(&released);
            sequence.released.sort_unstable();
            evicted.extend(released);
            evicted.sort_unstable();
        }
        sequence.kept.overflows += u32::from(event.overflow && !event.candidates.is_empty());
        self.evict(index, &evicted);
        self.prepare_revival(index);
    }

    /// Evicts positions and writes it down.
    pub(super) fn evict(&mut self, index: usize, evicted: &[Position]) {
        let Some(freed) = self.evict_rows(index, evicted) else { return };
        let sequence = &mut self.running[index];
        let at = Sequence::positions(sequence.map.len(), 0).start;
        let freed = u32::try_from(freed).expect("slot ids are 32-bit");
        sequence.log.push(PruneRecord { at, evicted: evicted.to_vec(), revived: Vec::new(), freed });
    }

    /// Marks positions dead and takes rows that nobody else uses out of the tree. Returns how many slots became free;
    /// `None` where there is nothing to evict.
    pub(super) fn evict_rows(&mut self, index: usize, evicted: &[Position]) -> Option<usize> {
        let first = evicted.first()?;
        self.archive(index, evicted);
        let sequence = &mut self.running[index];
        let exact = sequence.log.exact().min(sequence.map.len());
        let before = self.pool.free();
        if let Err(refused) = sequence.map.evict(evicted, &mut self.pool) {
            debug_assert!(false, "an event names only what may be evicted: {refused}");
            return None;
        }
        if first.index() < exact {
            let tokens = &sequence.tokens[..exact];
            self.tree.unpublish(&sequence.namespace, tokens, first.index(), &sequence.map, &mut self.pool);
        }
        sequence.kept.evicted += evicted.len();
        let freed = self.pool.free() - before;
        sequence.kept.freed += freed;
        Some(freed)
    }

    /// Evicts again what was evicted before the rows from `start` on were first computed.
    pub(super) fn replay_prunes(&mut self, index: usize, start: usize) {
        let sequence = &mut self.running[index];
        let Some(record) = sequence.log.next_from(start).filter(|record| record.at as usize == start) else {
            return;
        };
        let is_live =
            |position: &&Position| sequence.map.slot(**position).is_some_and(|slot| !slot.is_dead());
        // Where rows are computed again, those that come back later are kept aside until then.
        let live = record.evicted.iter().filter(is_live).copied();
        let (aside, evicted): (Vec<Position>, Vec<Position>) =
            live.partition(|&position| sequence.log.comes_back(record.at, position));
        let parked = sequence.map.park(&aside);
        if let Err(refused) = parked.and_then(|()| sequence.map.evict(&evicted, &mut self.pool).map(drop)) {
            debug_assert!(false, "what was evicted once may be again: {refused}");
        }
        sequence.map.unpark(&record.revived);
    }
}

/// Live positions that the request lets go of: any but sinks, the protected prefix and the newest.
fn released(sequence: &Sequence) -> Vec<Position> {
    let keep = &sequence.keep;
    if keep.releases.is_empty() {
        return Vec::new();
    }
    let front = keep.retention.sink_tokens.max(keep.protected);
    let newest = Sequence::positions(sequence.map.len(), 0).start.saturating_sub(1);
    let goes = |position: &Position| {
        (front..newest).contains(&position.0) && keep.releases.iter().any(|range| range.contains(&position.0))
    };
    sequence.map.live_positions().iter().copied().filter(goes).collect()
}

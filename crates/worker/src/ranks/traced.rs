//! Spans of ranks: what each rank did for a turn that is traced.
//!
//! The leader says with a sequence's first rows that its turn is traced; for all others a command is one byte longer and
//! no clock is read. Owns nothing that a step depends on: the clock is read to measure, never to decide.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::telemetry::{SpanKind, TraceParent, Tracer};
use serde::{Deserialize, Serialize};

use super::tables::TableChange;
use crate::scheduler::{SequenceId, StepPlan};

/// A sequence whose turn is traced, and the span that its ranks' spans hang under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    pub sequence: SequenceId,
    pub trace: u128,
    pub span: u64,
}

/// Where a rank's spans go.
#[derive(Clone, Debug)]
pub struct RankWatch {
    pub tracer: Tracer,
    pub clock: Clock,
}

/// What one rank has done for a sequence.
#[derive(Debug)]
struct Part {
    parent: TraceParent,
    from: Tick,
    to: Tick,
    steps: u64,
    rows: u64,
    busy: Duration,
}

/// The spans of one rank. As many as traced sequences run.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// `None`: nobody is told.
    to: Option<(RankWatch, usize)>,
    open: BTreeMap<SequenceId, Part>,
}

impl Spans {
    pub(super) fn of_rank(watch: RankWatch, rank: usize) -> Self {
        let to = watch.tracer.is_on().then_some((watch, rank));
        Self { to, open: BTreeMap::new() }
    }

    /// Before a step. Gives the time if the step is measured.
    pub(super) fn begin(&mut self, plan: &StepPlan) -> Option<Tick> {
        let now = |to: &(RankWatch, usize)| to.0.clock.now();
        for change in &plan.tables {
            if let TableChange::Drop { sequence } = change {
                self.end(*sequence);
            }
        }
        let to = self.to.as_ref()?;
        for traced in &plan.traces {
            let parent = TraceParent::from_ids((traced.trace, traced.span));
            let (from, busy) = (now(to), Duration::ZERO);
            self.open.insert(traced.sequence, Part { parent, from, to: from, steps: 0, rows: 0, busy });
        }
        let is_measured = plan.entries.iter().any(|entry| self.open.contains_key(&entry.sequence));
        is_measured.then(|| now(to))
    }

    /// After a step that is measured.
    pub(super) fn ran(&mut self, plan: &StepPlan, started: Option<Tick>) {
        let (Some(started), Some((watch, _))) = (started, &self.to) else { return };
        let now = watch.clock.now();
        for entry in &plan.entries {
            if let Some(part) = self.open.get_mut(&entry.sequence) {
                part.to = now;
                part.steps += 1;
                part.rows += entry.rows.len() as u64;
                part.busy += now.since(started);
            }
        }
    }

    fn end(&mut self, sequence: SequenceId) {
        let (Some(part), Some((watch, rank))) = (self.open.remove(&sequence), &self.to) else { return };
        let RankWatch { tracer, clock } = watch;
        let mut span = tracer.span("hawser.rank", SpanKind::Internal, &part.parent, clock.wall(part.from));
        span.number("hawser.rank", *rank as u64);
        span.number("hawser.steps", part.steps);
        span.number("hawser.rows", part.rows);
        span.number("hawser.busy_us", u64::try_from(part.busy.as_micros()).unwrap_or(u64::MAX));
        span.end(clock.wall(part.to));
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        let open: Vec<SequenceId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|sequence| self.end(sequence));
    }
}

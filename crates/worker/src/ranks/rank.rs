//! One rank: carries out commands in order, with what it holds: weights, KV rows, query memories, slot tables.
//!
//! Promises to refuse a command that is not the next one, and that ranks which ran the same commands have the same
//! tables. Never decides anything.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode, Position, SlotId};
use hawser_device::collective::{CollectiveError, StepTag};
use hawser_kv::retention::{RefillRun, refill_runs};
use hawser_model::executor::{Batch, LogitRows, Logits, MemoryState, Scores, Sequence, StepError};
use thiserror::Error;

use super::command::{Command, CommandError, Scoring, Work};
use super::engine::{Engine, EngineFigures};
use super::report::RankFigures;
use super::tables::{Table, Tables};
use super::traced::{RankWatch, Spans};
use crate::scheduler::{EntryKind, PlanEntry, StepPlan};

/// Why a rank cannot go on. The group is over.
#[derive(Debug, Error)]
pub enum RankError {
    #[error("step {found} of epoch {epoch} came where step {expected} of epoch {own} was due")]
    Gap { expected: u64, own: u64, found: u64, epoch: u64 },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("a command announces its length as {word:#018x}: damaged, or beyond {most} bytes")]
    Length { word: u64, most: usize },
    #[error("the slot tables of the ranks differ after step {step}")]
    Tables { step: u64 },
    /// On the leader, whose thread goes on; another rank's panic ends its thread or process.
    #[error("the leader's rank panicked: {reason}")]
    Panicked { reason: String },
    #[error("the group is over: {0}")]
    Group(CollectiveError),
}

impl RankError {
    /// The rank that it is about, where that is known.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Group(error) | Self::Step(StepError::Group(error)) => error.rank(),
            _ => None,
        }
    }
}

impl Coded for RankError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Step(error) => error.code(),
            Self::Gap { .. }
            | Self::Command(_)
            | Self::Length { .. }
            | Self::Tables { .. }
            | Self::Panicked { .. }
            | Self::Group(_) => ErrorCode::Unavailable,
        }
    }
}

/// What a command gives, on the leader.
#[derive(Debug)]
pub enum Outcome {
    Nothing,
    Logits(Logits),
    /// `None`: nothing is remembered to score by.
    Scores(Option<Scores>),
    Rows(Vec<u8>),
    /// `None`: nothing is remembered.
    Memory(Option<Box<MemoryState>>),
}

/// A rank's state.
#[derive(Debug)]
pub struct Rank {
    engine: Box<dyn Engine>,
    tables: Tables,
    epoch: u64,
    /// The step that is due.
    next: u64,
    /// It only measures: nothing that a rank does depends on it.
    clock: Clock,
    /// Spent on commands.
    busy: Duration,
    spans: Spans,
}

impl Rank {
    /// A rank at the beginning of an epoch.
    #[must_use]
    pub fn new(engine: impl Engine + 'static, epoch: u64) -> Self {
        Self {
            engine: Box::new(engine),
            tables: Tables::default(),
            epoch,
            next: 1,
            clock: Clock::system(),
            busy: Duration::ZERO,
            spans: Spans::default(),
        }
    }

    /// The same, whose work for traced turns is told.
    #[must_use]
    pub fn watched_by(self, watch: Option<RankWatch>, rank: usize) -> Self {
        let spans = watch.map_or_else(Spans::default, |watch| Spans::of_rank(watch, rank));
        Self { spans, ..self }
    }

    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables, to change outside a command. For tests.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// Number of the step that is due.
    #[must_use]
    pub fn next_step(&self) -> u64 {
        self.next
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    #[must_use]
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// What people may know of it.
    #[must_use]
    pub fn figures(&self) -> RankFigures {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let EngineFigures { weight_bytes, kv_bytes, threads, across } = self.engine.figures();
        RankFigures {
            step: self.next - 1,
            weight_bytes,
            kv_bytes,
            threads,
            computing_us: micros(self.busy.saturating_sub(across)),
            across_us: micros(across),
        }
    }

    /// Carries out the next command.
    ///
    /// # Errors
    /// [`RankError`]: a gap, or a step that failed here or on another rank.
    pub fn run(&mut self, command: &Command) -> Result<Outcome, RankError> {
        let Command { epoch, step, work, compares: _ } = command;
        if (*epoch, *step) != (self.epoch, self.next) {
            let (expected, own) = (self.next, self.epoch);
            return Err(RankError::Gap { expected, own, found: *step, epoch: *epoch });
        }
        self.next += 1;
        self.engine.begin(StepTag { epoch: self.epoch, step: *step });
        let began = self.clock.now();
        let outcome = match work {
            Work::Run(plan) => self.run_plan(plan),
            Work::Score(changes, scoring) => {
                changes.iter().for_each(|change| self.engine.change(change));
                self.score(scoring)
            }
            Work::ReadRows(slots) => Ok(Outcome::Rows(self.engine.read_rows(slots)?)),
            Work::WriteRows(slots, bytes) => {
                self.engine.write_rows(slots, bytes);
                Ok(Outcome::Nothing)
            }
            Work::ReadMemory(id) => Ok(Outcome::Memory(self.engine.read_memory(*id)?.map(Box::new))),
            Work::WriteMemory(id, state) => {
                self.engine.write_memory(*id, state);
                Ok(Outcome::Nothing)
            }
            Work::Beat | Work::End => Ok(Outcome::Nothing),
        };
        self.busy += self.clock.now().since(began);
        outcome
    }

    fn run_plan(&mut self, plan: &StepPlan) -> Result<Outcome, RankError> {
        let started = self.spans.begin(plan);
        plan.changes.iter().for_each(|change| self.engine.change(change));
        plan.tables.iter().for_each(|change| self.tables.apply(change));
        if plan.entries.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let refills: Vec<Vec<RefillRun>> = plan.entries.iter().map(|entry| self.runs(plan, entry)).collect();
        let none = Table::default();
        let mut sequences = Vec::with_capacity(plan.entries.len());
        for (entry, runs) in plan.entries.iter().zip(&refills) {
            let table = self.tables.find(entry.sequence).unwrap_or(&none);
            let whole = Sequence {
                rows: entry.rows.clone(),
                context: table.slots(),
                after: 0,
                positions: table.positions(),
                logits: if entry.sample { LogitRows::Last } else { LogitRows::None },
                observe: entry.observe.clone(),
            };
            sequences.extend(runs.iter().map(|run| Sequence {
                rows: entry.rows.start + run.rows.start..entry.rows.start + run.rows.end,
                context: &run.context,
                after: run.rows.start,
                positions: &[],
                ..whole.clone()
            }));
            if runs.is_empty() {
                sequences.push(whole);
            }
        }
        let batch = Batch {
            tokens: &plan.tokens,
            positions: &plan.positions,
            slots: &plan.slots,
            sequences: &sequences,
        };
        let logits = self.engine.step(&batch)?;
        self.spans.ran(plan, started);
        for entry in plan.entries.iter().filter(|entry| entry.kind == EntryKind::Next) {
            let (positions, slots) = (&plan.positions[entry.rows.clone()], &plan.slots[entry.rows.clone()]);
            self.tables.append(entry.sequence, positions, slots);
        }
        for (observe, recursion) in plan.entries.iter().filter_map(|e| e.observe.as_ref().zip(e.remember)) {
            self.engine.remember(observe.memory, recursion);
        }
        Ok(Outcome::Logits(logits))
    }

    /// The runs of rows that are computed again; none of other rows.
    fn runs(&self, plan: &StepPlan, entry: &PlanEntry) -> Vec<RefillRun> {
        let EntryKind::Refill { aside } = &entry.kind else { return Vec::new() };
        let of_table = self.tables.find(entry.sequence).into_iter().flat_map(Table::rows);
        let mut seen: Vec<(Position, SlotId)> = of_table.chain(aside.iter().copied()).collect();
        seen.sort_unstable();
        let positions = plan.positions[entry.rows.clone()].iter().copied();
        let rows: Vec<(Position, SlotId)> =
            positions.zip(plan.slots[entry.rows.clone()].iter().copied()).collect();
        refill_runs(&seen, &rows)
    }

    fn score(&mut self, scoring: &Scoring) -> Result<Outcome, RankError> {
        Ok(Outcome::Scores(self.engine.score(&scoring.request())?))
    }
}

//! One rank: carries out commands in order, with what it holds: weights, KV rows, query memories, slot tables.
//!
//! Promises to refuse a command that is not the next one, and that ranks which ran the same commands have the same
//! tables. Never decides anything.

use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::{CollectiveError, StepTag};
use hawser_model::executor::{Batch, Executor, LogitRows, Logits, MemoryState, Scores, Sequence, StepError};
use thiserror::Error;

use super::command::{Command, CommandError, Scoring, Work};
use super::tables::{Table, Tables};
use super::traced::{RankWatch, Spans};
use crate::scheduler::{RankChange, StepPlan};

/// Why a rank cannot go on. The group is over.
#[derive(Debug, Error)]
pub enum RankError {
    #[error("step {found} of epoch {epoch} came where step {expected} of epoch {own} was due")]
    Gap { expected: u64, own: u64, found: u64, epoch: u64 },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("a command of {bytes} bytes was announced; the longest has {most}")]
    Length { bytes: i64, most: usize },
    #[error("the slot tables of the ranks differ after step {step}")]
    Tables { step: u64 },
    #[error("the group is over: {0}")]
    Group(CollectiveError),
}

impl Coded for RankError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Step(error) => error.code(),
            Self::Gap { .. }
            | Self::Command(_)
            | Self::Length { .. }
            | Self::Tables { .. }
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
    executor: Executor,
    tables: Tables,
    epoch: u64,
    /// The step that is due.
    next: u64,
    spans: Spans,
}

impl Rank {
    /// A rank at the beginning of an epoch.
    #[must_use]
    pub fn new(executor: Executor, epoch: u64) -> Self {
        Self { executor, tables: Tables::default(), epoch, next: 1, spans: Spans::default() }
    }

    /// The same, whose work for traced turns is told.
    #[must_use]
    pub fn watched_by(self, watch: Option<RankWatch>, rank: usize) -> Self {
        let spans = watch.map_or_else(Spans::default, |watch| Spans::of_rank(watch, rank));
        Self { spans, ..self }
    }

    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
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

    /// Carries out the next command.
    ///
    /// # Errors
    /// [`RankError`]: a gap, or a step that failed here or on another rank.
    pub fn run(&mut self, command: &Command) -> Result<Outcome, RankError> {
        let Command { epoch, step, work } = command;
        if (*epoch, *step) != (self.epoch, self.next) {
            let (expected, own) = (self.next, self.epoch);
            return Err(RankError::Gap { expected, own, found: *step, epoch: *epoch });
        }
        self.next += 1;
        self.executor.begin(StepTag { epoch: self.epoch, step: *step });
        match work {
            Work::Run(plan) => self.run_plan(plan),
            Work::Score(changes, scoring) => {
                self.change_all(changes);
                self.score(scoring)
            }
            Work::ReadRows(slots) => Ok(Outcome::Rows(self.executor.read_rows(slots)?)),
            Work::WriteRows(slots, bytes) => {
                self.executor.write_rows(slots, bytes);
                Ok(Outcome::Nothing)
            }
            Work::ReadMemory(id) => Ok(Outcome::Memory(self.executor.read_memory(*id)?.map(Box::new))),
            Work::WriteMemory(id, state) => {
                self.executor.write_memory(*id, state);
                Ok(Outcome::Nothing)
            }
            Work::Beat | Work::End => Ok(Outcome::Nothing),
        }
    }

    fn change_all(&mut self, changes: &[RankChange]) {
        for change in changes {
            match change {
                RankChange::Begin(id) => self.executor.begin_memory(*id),
                RankChange::TakeBack(id) => self.executor.take_back_memory(*id),
                RankChange::Fork { from, to } => self.executor.fork_memory(*from, *to),
                RankChange::Forget(id) => self.executor.forget_memory(*id),
                RankChange::Move(row) => self.executor.move_row(row),
            }
        }
    }

    fn run_plan(&mut self, plan: &StepPlan) -> Result<Outcome, RankError> {
        let started = self.spans.begin(plan);
        self.change_all(&plan.changes);
        plan.tables.iter().for_each(|change| self.tables.apply(change));
        if plan.entries.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let none = Table::default();
        let sequences: Vec<Sequence<'_>> = plan
            .entries
            .iter()
            .map(|entry| {
                let table = self.tables.find(entry.sequence).unwrap_or(&none);
                Sequence {
                    rows: entry.rows.clone(),
                    context: table.slots(),
                    positions: table.positions(),
                    logits: if entry.sample { LogitRows::Last } else { LogitRows::None },
                    observe: entry.observe.clone(),
                }
            })
            .collect();
        let batch = Batch {
            tokens: &plan.tokens,
            positions: &plan.positions,
            slots: &plan.slots,
            sequences: &sequences,
        };
        let logits = self.executor.step(&batch)?;
        self.spans.ran(plan, started);
        for entry in plan.entries.iter().filter(|entry| !entry.hint) {
            let (positions, slots) = (&plan.positions[entry.rows.clone()], &plan.slots[entry.rows.clone()]);
            self.tables.append(entry.sequence, positions, slots);
        }
        for (observe, recursion) in plan.entries.iter().filter_map(|e| e.observe.as_ref().zip(e.remember)) {
            self.executor.remember(observe.memory, recursion);
        }
        Ok(Outcome::Logits(logits))
    }

    fn score(&mut self, scoring: &Scoring) -> Result<Outcome, RankError> {
        Ok(Outcome::Scores(self.executor.score(&scoring.request())?))
    }
}

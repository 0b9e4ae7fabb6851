//! The leader's end of a group: says every command to all ranks and carries it out itself.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hawser_common::SlotId;
use hawser_device::collective::{AbortHandle, CallTimer, Traffic};
use hawser_model::executor::{Logits, MemoryId, MemoryState, Scores};

use super::command::{Command, Scoring, Work};
use super::link::Link;
use super::rank::{Outcome, Rank, RankError};
use super::report::RankFigures;
use super::tables::TableChange;
use crate::scheduler::{RankChange, StepPlan};

/// Steps between two comparisons of the tables.
const COMPARE_EVERY: u64 = 64;

/// The leader of one epoch. Dropping it ends the group.
#[derive(Debug)]
pub struct Leader {
    rank: Rank,
    /// `None`: the leader is the group.
    link: Option<Link>,
    /// Ends the sums of the group.
    sums: Option<AbortHandle>,
}

impl Leader {
    /// A group of one.
    #[must_use]
    pub fn alone(rank: Rank) -> Self {
        Self { rank, link: None, sums: None }
    }

    /// The leader of followers that hear `link`; `sums` ends the group in which their executors add up.
    #[must_use]
    pub fn of(rank: Rank, link: Link, sums: AbortHandle) -> Self {
        Self { rank, link: Some(link), sums: Some(sums) }
    }

    /// Whether there are followers that want to hear something every [`super::BEAT`].
    #[must_use]
    pub fn has_followers(&self) -> bool {
        self.link.is_some()
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.rank.epoch()
    }

    /// Steps that were carried out in this epoch.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.rank.next_step() - 1
    }

    /// What ranks say of themselves: as of the last comparison, a group of one as of now.
    #[must_use]
    pub fn figures(&self) -> Vec<RankFigures> {
        self.link.as_ref().map_or_else(|| vec![self.rank.figures()], |link| link.figures().to_vec())
    }

    /// Of the leader's calls to the others: on the link, and for sums.
    #[must_use]
    pub fn timers(&self) -> Vec<CallTimer> {
        let link = self.link.as_ref().map(Link::timer);
        link.into_iter().chain(self.rank.engine().call_timer()).cloned().collect()
    }

    /// What the leader has sent so far: on the link, and for sums.
    #[must_use]
    pub fn traffic(&self) -> [Traffic; 2] {
        let link = self.link.as_ref().map_or_else(Traffic::default, Link::traffic);
        [link, self.rank.engine().traffic()]
    }

    /// Says that the leader is there, and finds out whether the others are.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn beat(&mut self) -> Result<(), RankError> {
        let command = self.command(Work::Beat);
        self.tell(&command).map(drop)
    }

    /// Ends the group in good order.
    pub fn end(mut self) {
        let command = self.command(Work::End);
        if let Err(error) = self.tell(&command) {
            tracing::debug!(%error, "the group's end was not heard by all");
        }
        (self.link, self.sums) = (None, None);
    }

    /// Runs a plan; the logits are those of its sampled rows, in order.
    ///
    /// # Errors
    /// [`RankError`]: the group is over.
    pub fn step(&mut self, plan: &Arc<StepPlan>) -> Result<Option<Logits>, RankError> {
        let command = self.command(Work::Run(Arc::clone(plan)));
        match self.tell(&command)? {
            Outcome::Logits(logits) => Ok(Some(logits)),
            Outcome::Nothing | Outcome::Scores(_) | Outcome::Rows(_) | Outcome::Memory(_) => Ok(None),
        }
    }

    /// Scores candidates after some changes; `None` where nothing is remembered to score by.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn score(&mut self, changes: Vec<RankChange>, scoring: Scoring) -> Result<Option<Scores>, RankError> {
        let command = self.command(Work::Score(changes, scoring));
        match self.tell(&command)? {
            Outcome::Scores(scores) => Ok(scores),
            Outcome::Nothing | Outcome::Logits(_) | Outcome::Rows(_) | Outcome::Memory(_) => Ok(None),
        }
    }

    /// Rows of a session that leaves, as the whole model has them.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn read_rows(&mut self, slots: Vec<SlotId>) -> Result<Vec<u8>, RankError> {
        let command = self.command(Work::ReadRows(slots));
        match self.tell(&command)? {
            Outcome::Rows(bytes) => Ok(bytes),
            _ => Err(self.gap()),
        }
    }

    /// Stores rows of a session that enters; their number of bytes was checked.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn write_rows(&mut self, slots: Vec<SlotId>, bytes: Vec<u8>) -> Result<(), RankError> {
        let command = self.command(Work::WriteRows(slots, bytes));
        self.tell(&command).map(drop)
    }

    /// What is remembered of a session that leaves.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn read_memory(&mut self, id: MemoryId) -> Result<Option<MemoryState>, RankError> {
        let command = self.command(Work::ReadMemory(id));
        match self.tell(&command)? {
            Outcome::Memory(state) => Ok(state.map(|state| *state)),
            _ => Err(self.gap()),
        }
    }

    /// Remembers of a session that enters what was remembered elsewhere; that it fits was checked.
    ///
    /// # Errors
    /// As [`Leader::step`].
    pub fn write_memory(&mut self, id: MemoryId, state: MemoryState) -> Result<(), RankError> {
        let command = self.command(Work::WriteMemory(id, Box::new(state)));
        self.tell(&command).map(drop)
    }

    /// Bytes of one slot in all layers and heads of the model, and numbers of one query row.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        self.rank.engine().sizes()
    }

    fn gap(&self) -> RankError {
        let (expected, own) = (self.rank.next_step(), self.rank.epoch());
        RankError::Gap { expected, own, found: 0, epoch: own }
    }

    fn command(&self, work: Work) -> Command {
        let (epoch, step) = (self.rank.epoch(), self.rank.next_step());
        Command { epoch, step, compares: compares(step, &work), work }
    }

    fn tell(&mut self, command: &Command) -> Result<Outcome, RankError> {
        // After an error nobody uses the leader again, whatever a panic left of it.
        let told = catch_unwind(AssertUnwindSafe(|| self.say_and_run(command)));
        told.unwrap_or_else(|panic| Err(RankError::Panicked { reason: text_of(&*panic) }))
    }

    fn say_and_run(&mut self, command: &Command) -> Result<Outcome, RankError> {
        if let Some(link) = &mut self.link {
            link.send(command)?;
        }
        let outcome = self.rank.run(command)?;
        if let Some(link) = &mut self.link {
            link.compare(command, &self.rank)?;
        }
        Ok(outcome)
    }
}

/// Whether ranks compare their tables after a step: in idle times, every so many steps, and in builds with debug
/// assertions at every prune, before it and once it has reached the tables.
fn compares(step: u64, work: &Work) -> bool {
    let due = step.is_multiple_of(COMPARE_EVERY);
    match work {
        Work::Beat => true,
        Work::ReadRows(_) | Work::WriteRows(..) | Work::ReadMemory(_) | Work::WriteMemory(..) | Work::End => {
            false
        }
        Work::Score(..) => due || cfg!(debug_assertions),
        Work::Run(plan) => {
            let patches = || plan.tables.iter().any(|change| matches!(change, TableChange::Patch { .. }));
            due || (cfg!(debug_assertions) && patches())
        }
    }
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Followers that wait for a command or a sum learn of it at once.
        self.link.iter().for_each(|link| link.abort_handle().abort("the leader ended the group"));
        self.sums.iter().for_each(|sums| sums.abort("the leader ended the group"));
    }
}

//! The leader's end of a group: says every command to all ranks and carries it out itself.

use hawser_common::SlotId;
use hawser_device::collective::AbortHandle;
use hawser_model::executor::{Logits, MemoryId, MemoryState, Scores};

use super::command::{Command, Scoring, Work};
use super::link::Link;
use super::rank::{Outcome, Rank, RankError};
use crate::scheduler::{RankChange, StepPlan};

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
    pub fn step(&mut self, plan: StepPlan) -> Result<(StepPlan, Option<Logits>), RankError> {
        let command = self.command(Work::Run(plan));
        let outcome = self.tell(&command)?;
        let Work::Run(plan) = command.work else { return Err(self.gap()) };
        Ok((plan, if let Outcome::Logits(logits) = outcome { Some(logits) } else { None }))
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
        let executor = self.rank.executor();
        (executor.slot_bytes(), executor.query_numbers())
    }

    fn command(&self, work: Work) -> Command {
        Command { epoch: self.rank.epoch(), step: self.rank.next_step(), work }
    }

    fn tell(&mut self, command: &Command) -> Result<Outcome, RankError> {
        if let Some(link) = &mut self.link {
            link.send(command)?;
        }
        let outcome = self.rank.run(command)?;
        if let Some(link) = &mut self.link {
            link.compare(command, || self.rank.tables().digest())?;
        }
        Ok(outcome)
    }

    fn gap(&self) -> RankError {
        let (expected, own) = (self.rank.next_step(), self.rank.epoch());
        RankError::Gap { expected, own, found: 0, epoch: own }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Followers that wait for a command or a sum learn of it at once.
        self.link.iter().for_each(|link| link.abort_handle().abort("the leader ended the group"));
        self.sums.iter().for_each(|sums| sums.abort("the leader ended the group"));
    }
}

//! The leader's end of a group: says every command to all ranks and carries it out itself.

use hawser_device::collective::{AbortHandle, CallTimer, Traffic};
use hawser_model::executor::{Logits, Scores};

use super::command::{Command, Scoring, Work};
use super::link::Link;
use super::rank::{Outcome, Rank, RankError};
use super::report::RankFigures;
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
            Outcome::Nothing | Outcome::Logits(_) => Ok(None),
        }
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
            link.compare(command, &self.rank)?;
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

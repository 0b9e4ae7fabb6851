//! What crosses the ranks of a group in a step, and the time that it takes. Promises that a group of one makes no call,
//! copies nothing and reads no clock.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_device::collective::{Collective, CollectiveError, Reduce, StepTag, Traffic, Values};
use hawser_device::linear::Write;

/// One rank's end of the group it runs in.
#[derive(Debug)]
pub(crate) struct Group {
    /// `None`: a group of one.
    ranks: Option<Box<dyn Collective>>,
    clock: Clock,
    /// Spent inside calls, waiting for others included.
    spent: Duration,
}

impl Group {
    pub(crate) fn alone() -> Self {
        Self { ranks: None, clock: Clock::system(), spent: Duration::ZERO }
    }

    pub(crate) fn of(collective: Box<dyn Collective>) -> Self {
        Self { ranks: (collective.world() > 1).then_some(collective), ..Self::alone() }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.ranks.is_none()
    }

    pub(crate) fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |ranks| ranks.rank())
    }

    pub(crate) fn world(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.world())
    }

    pub(crate) fn begin(&mut self, step: StepTag) {
        if let Some(ranks) = &mut self.ranks {
            ranks.begin_step(step);
        }
    }

    /// How a rank writes its part of a product into the residual stream before [`Group::sum`]: the leader adds it to
    /// what is there, the others put it in its place, so that the sum over ranks has the residual once.
    pub(crate) fn residual(&self) -> Write {
        if self.rank() == 0 { Write::Add } else { Write::Store }
    }

    /// Leaves the sum over ranks in `values`, on every rank.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.timed(|ranks| ranks.all_reduce(Values::F32(values), Reduce::Sum))
    }

    /// Leaves the reduction over ranks in the leader's `values`.
    pub(crate) fn reduce_to_leader(&mut self, values: &mut [i64], by: Reduce) -> Result<(), CollectiveError> {
        self.timed(|ranks| ranks.reduce_to_leader(Values::I64(values), by))
    }

    /// Puts the ranks' parts behind each other in the leader's `whole`. Only of a group of several.
    pub(crate) fn gather(
        &mut self,
        part: &[f32],
        counts: &[usize],
        whole: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.timed(|ranks| ranks.gather(part, counts, whole))
    }

    fn timed(
        &mut self,
        call: impl FnOnce(&mut dyn Collective) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let Some(ranks) = &mut self.ranks else { return Ok(()) };
        let began = self.clock.now();
        let done = call(&mut **ranks);
        self.spent += self.clock.now().since(began);
        done
    }

    /// Time spent in calls so far, waiting for the other ranks included.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Ends the group: the other ranks need not wait for this one.
    pub(crate) fn abort(&self, reason: &str) {
        if let Some(ranks) = &self.ranks {
            ranks.abort_handle().abort(reason);
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.ranks.as_ref().map_or_else(Traffic::default, |ranks| ranks.traffic())
    }
}

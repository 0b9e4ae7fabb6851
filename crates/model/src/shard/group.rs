//! What crosses the ranks of a group in a step, and the time that it takes. Promises that a group of one makes no call,
//! copies nothing and reads no clock.

use hawser_device::collective::{
    CallTimer, Collective, CollectiveError, Reduce, StepTag, Timed, Traffic, Values,
};

/// One rank's end of the group it runs in.
#[derive(Debug)]
pub(crate) struct Group {
    /// `None`: a group of one.
    ranks: Option<Timed>,
}

impl Group {
    pub(crate) fn alone() -> Self {
        Self { ranks: None }
    }

    pub(crate) fn of(collective: Box<dyn Collective>) -> Self {
        Self { ranks: (collective.world() > 1).then(|| Timed::new(collective)) }
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

    /// Leaves the sum over ranks in `values`, on every rank.
    pub(crate) fn sum(&mut self, values: Values<'_>) -> Result<(), CollectiveError> {
        match &mut self.ranks {
            Some(ranks) => ranks.all_reduce(values, Reduce::Sum),
            None => Ok(()),
        }
    }

    /// Leaves the reduction over ranks in the leader's `values`.
    pub(crate) fn reduce_to_leader(&mut self, values: &mut [i64], by: Reduce) -> Result<(), CollectiveError> {
        match &mut self.ranks {
            Some(ranks) => ranks.reduce_to_leader(Values::I64(values), by),
            None => Ok(()),
        }
    }

    /// Puts the ranks' parts behind each other in the leader's `whole`. Only of a group of several.
    pub(crate) fn gather(
        &mut self,
        part: &[f32],
        counts: &[usize],
        whole: &mut [f32],
    ) -> Result<(), CollectiveError> {
        match &mut self.ranks {
            Some(ranks) => ranks.gather(part, counts, whole),
            None => Ok(()),
        }
    }

    /// Of the calls; `None`: a group of one makes none.
    pub(crate) fn timer(&self) -> Option<&CallTimer> {
        self.ranks.as_ref().map(Timed::timer)
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

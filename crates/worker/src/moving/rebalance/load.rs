//! What a group carries, and what one session adds to it, in two currencies: rows and calls.
//!
//! Rows are those that sessions are expected to need within [`HORIZON`], whether they have them now or not, and those of
//! running turns. Calls are turns that run or wait, over the last few samples. Never decides anything.

use std::time::Duration;

use hawser_common::group::GroupRecord;

/// How far ahead is looked: what is not used within this time counts in part.
pub const HORIZON: Duration = Duration::from_secs(60);
/// Share of a pool beyond which rows are expected to be given up: running turns grow, and chunks need room.
pub const FULL: f64 = 0.8;

/// Probability that a session is used within the horizon which was not for `idle`: the longer it was not, the longer it
/// will not be (Lindy's law).
#[must_use]
pub fn use_probability(idle: Duration) -> f64 {
    HORIZON.as_secs_f64() / (HORIZON + idle).as_secs_f64()
}

/// What a session adds to the load of whoever has it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    pub rows: f64,
    pub calls: f64,
}

/// What a group carries, and what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub rows: f64,
    pub calls: f64,
    /// Usable slots of its pool.
    pub slots: f64,
    /// Turns that may run at once.
    pub places: f64,
}

impl Load {
    /// How full it is: 1 for a pool of which every slot will be needed, and 1 for every place taken.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.rows / self.slots.max(1.0) + self.calls / self.places.max(1.0)
    }

    /// Rows that are expected to be given up.
    #[must_use]
    pub fn overflow(&self) -> f64 {
        (self.rows - FULL * self.slots).max(0.0)
    }

    #[must_use]
    pub fn with(self, share: Share) -> Self {
        Self { rows: self.rows + share.rows, calls: self.calls + share.calls, ..self }
    }

    #[must_use]
    pub fn without(self, share: Share) -> Self {
        let (rows, calls) = ((self.rows - share.rows).max(0.0), (self.calls - share.calls).max(0.0));
        Self { rows, calls, ..self }
    }

    /// Of another group, by what it published. A slot that may be taken counts half, as it does for routers: what only
    /// the prefix tree holds looks like what an idle session holds.
    #[must_use]
    pub fn of_record(record: &GroupRecord, calls: f64, places: f64) -> Self {
        let capacity = &record.capacity;
        let held = capacity.slots_total.saturating_sub(capacity.slots_free);
        let rows = held as f64 - capacity.slots_idle.min(held) as f64 / 2.0;
        Self { rows, calls, slots: capacity.slots_total as f64, places }
    }
}

/// Turns of a group, smoothed over samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) running: f64,
    pub(super) queued: f64,
}

impl Calls {
    /// Weight of the newest sample.
    const NEWEST: f64 = 0.3;

    pub(super) fn of(running: u32, queued: u32) -> Self {
        Self { running: f64::from(running), queued: f64::from(queued) }
    }

    pub(super) fn sample(&mut self, newest: Self) {
        let mix = |old: f64, new: f64| old + Self::NEWEST * (new - old);
        self.running = mix(self.running, newest.running);
        self.queued = mix(self.queued, newest.queued);
    }

    /// As many more, or fewer: of those that wait first.
    pub(super) fn shift(&mut self, by: f64) {
        let queued = self.queued + by;
        self.queued = queued.max(0.0);
        self.running = (self.running + queued.min(0.0)).max(0.0);
    }

    pub(super) fn all(self) -> f64 {
        self.running + self.queued
    }

    /// Seconds that a turn is expected to wait where one takes `turn_s`, and `more` waits before it: each place that
    /// runs becomes free once in that time.
    pub(super) fn wait_s(self, more: f64, turn_s: f64) -> f64 {
        (self.queued + more) * turn_s / self.running.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_lately_counts_more_than_what_was_not() {
        let of = |seconds| use_probability(Duration::from_secs(seconds));
        assert_eq!((of(0), of(60)), (1.0, 0.5));
        assert!(of(3_600) < 0.02 && of(3_600) > 0.0);
    }

    #[test]
    fn a_load_is_rows_of_the_pool_and_calls_of_the_places() {
        let load = Load { rows: 500.0, calls: 8.0, slots: 1_000.0, places: 32.0 };
        assert_eq!(load.level(), 0.75);
        let share = Share { rows: 400.0, calls: 0.0 };
        assert_eq!((load.overflow(), load.with(share).overflow()), (0.0, 100.0));
        assert_eq!(load.with(share).without(share), load);
    }

    #[test]
    fn calls_follow_samples_slowly() {
        let mut calls = Calls::of(0, 0);
        calls.sample(Calls::of(10, 10));
        assert!((calls.queued - 3.0).abs() < 1e-9);
        (0..50).for_each(|_| calls.sample(Calls::of(10, 10)));
        assert!((calls.all() - 20.0).abs() < 1e-3);
        assert!((calls.wait_s(0.0, 2.0) - 2.0).abs() < 1e-3);
    }
}

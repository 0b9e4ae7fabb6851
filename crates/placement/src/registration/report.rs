//! When what a group has left is worth telling. Pure; time is an argument.

use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::Capacity;

/// Shortest time between two publications.
pub(super) const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Longest: an unchanged capacity is published all the same, so that a router can tell a quiet group from one that
/// has stopped reporting.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// A change of less than this share of the pool is not news.
const SHARE: u64 = 50;

/// What the worker last reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) capacity: Capacity,
    pub(super) draining: bool,
    /// The group cannot serve for now and stays out of the cluster.
    pub(super) suspended: bool,
}

/// What was last published, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) report: Report,
    pub(super) at: Tick,
}

impl Published {
    /// How long to wait before publishing `report`; zero is now.
    pub(super) fn wait(&self, report: &Report, now: Tick) -> Duration {
        let interval = if significant(&self.report, report) { MIN_INTERVAL } else { MAX_INTERVAL };
        interval.saturating_sub(now.since(self.at))
    }
}

fn significant(old: &Report, new: &Report) -> bool {
    let (a, b) = (&old.capacity, &new.capacity);
    let moved = |from: u64, to: u64| from.abs_diff(to) * SHARE >= b.slots_total.max(1) && from != to;
    old.draining != new.draining
        || a.slots_total != b.slots_total
        || moved(a.slots_free, b.slots_free)
        || moved(a.slots_idle, b.slots_idle)
        || moved(a.slots_reclaimed, b.slots_reclaimed)
        || moved(a.slots_reserved, b.slots_reserved)
        || (a.slots_free == 0) != (b.slots_free == 0)
        || a.sessions != b.sessions
        || a.running != b.running
        || a.queued != b.queued
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Capacity = Capacity {
        slots_total: 1000,
        slots_free: 500,
        slots_idle: 100,
        slots_reclaimed: 900,
        slots_reserved: 50,
        sessions: 3,
        running: 1,
        queued: 0,
    };

    #[track_caller]
    fn check(new: Report, expected: Duration) {
        let old = Report { capacity: BASE, draining: false, suspended: false };
        let published = Published { report: old, at: Tick(Duration::from_secs(100)) };
        assert_eq!(published.wait(&new, Tick(Duration::from_secs(100))), expected, "{new:?}");
        assert_eq!(published.wait(&new, Tick(Duration::from_secs(100) + expected)), Duration::ZERO);
    }

    #[test]
    fn news_waits_a_second_and_the_rest_ten() {
        let of = |capacity| Report { capacity, draining: false, suspended: false };
        check(of(BASE), MAX_INTERVAL);
        check(of(Capacity { slots_free: 481, ..BASE }), MAX_INTERVAL);
        check(of(Capacity { slots_free: 480, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { slots_free: 0, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { slots_idle: 120, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { slots_reclaimed: 919, slots_reserved: 31, ..BASE }), MAX_INTERVAL);
        check(of(Capacity { slots_reclaimed: 920, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { slots_reserved: 30, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { queued: 1, ..BASE }), MIN_INTERVAL);
        check(of(Capacity { sessions: 4, ..BASE }), MIN_INTERVAL);
        check(Report { capacity: BASE, draining: true, suspended: false }, MIN_INTERVAL);
    }
}

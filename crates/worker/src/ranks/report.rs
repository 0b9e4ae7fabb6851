//! What is known of a group's ranks, for people: figures that ranks give of themselves, and when each was last heard.
//!
//! Owned by the driver, which publishes it. Promises that a rank which is not there has a reason. Never decides
//! anything: a group is given up for its errors, and not for what stands here.

use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_device::collective::CallTimer;

use super::rank::RankError;

/// A rank that others wait for so long in one call is slow.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// What a rank says of itself with each comparison of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankFigures {
    /// The last command that it carried out, of this epoch.
    pub step: u64,
    /// Matrices, as they lie in memory.
    pub weight_bytes: u64,
    /// KV rows, the archive's included.
    pub kv_bytes: u64,
    pub threads: u64,
    /// Microseconds in this epoch in which it carried out commands, without those in calls to other ranks.
    pub computing_us: u64,
    /// Microseconds in this epoch in calls to other ranks, waiting for them included.
    pub across_us: u64,
}

impl RankFigures {
    pub(super) const COUNT: usize = 6;

    /// As numbers of which none is negative.
    pub(super) fn numbers(&self) -> [i64; Self::COUNT] {
        let Self { step, weight_bytes, kv_bytes, threads, computing_us, across_us } = *self;
        [step, weight_bytes, kv_bytes, threads, computing_us, across_us]
            .map(|number| i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub(super) fn of(numbers: &[i64]) -> Self {
        let number = |index: usize| numbers.get(index).map_or(0, |&number| number.max(0).cast_unsigned());
        Self {
            step: number(0),
            weight_bytes: number(1),
            kv_bytes: number(2),
            threads: number(3),
            computing_us: number(4),
            across_us: number(5),
        }
    }
}

/// What a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Ranks are missing.
    Forming,
    Idle,
    /// Running the rows of a step.
    Running,
    /// Scoring for a prune or a revival.
    Scoring,
}

/// How a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It has not joined this epoch.
    Missing,
    Up,
    /// Others wait for it, for so long by now.
    Slow(Duration),
    /// It ended the group, or went without a word.
    Gone {
        reason: String,
    },
}

/// One rank.
#[derive(Clone, Debug)]
pub struct RankReport {
    pub figures: RankFigures,
    /// When it last took part in something; `None`: not yet.
    pub heard: Option<Tick>,
    health: Health,
}

/// A group, as its leader sees it.
#[derive(Clone, Debug)]
pub struct GroupReport {
    /// Of the ranks: it grows with every failure.
    pub epoch: u64,
    /// Commands that were carried out in this epoch.
    pub step: u64,
    pub phase: Phase,
    /// Since when.
    pub since: Tick,
    pub ranks: Vec<RankReport>,
    /// Slots of every rank's pool, and behind them.
    pool_slots: usize,
    archive_slots: usize,
    /// Of the leader's calls to the others.
    timers: Vec<CallTimer>,
}

impl GroupReport {
    /// A group of `world` ranks of which none is there.
    #[must_use]
    pub fn new(world: usize, now: Tick) -> Self {
        let rank = || RankReport { figures: RankFigures::default(), heard: None, health: Health::Missing };
        let ranks = (0..world).map(|_| rank()).collect();
        let (pool_slots, archive_slots, timers) = (1, 0, Vec::new());
        Self {
            epoch: 0,
            step: 0,
            phase: Phase::Forming,
            since: now,
            ranks,
            pool_slots,
            archive_slots,
            timers,
        }
    }

    /// The same, where each rank has so many slots in its pool and so many behind them.
    #[must_use]
    pub fn with_slots(self, pool_slots: usize, archive_slots: usize) -> Self {
        Self { pool_slots, archive_slots, ..self }
    }

    /// Which part of a rank's KV rows is its pool's, and which the archive's: a slot takes as much in both.
    #[must_use]
    pub fn pool_and_archive(&self, figures: &RankFigures) -> (u64, u64) {
        let slots = (self.pool_slots + self.archive_slots).max(1) as u128;
        let pool = u128::from(figures.kv_bytes) * self.pool_slots as u128 / slots;
        let pool = u64::try_from(pool).unwrap_or(figures.kv_bytes);
        (pool, figures.kv_bytes - pool)
    }

    /// All ranks are there.
    pub fn formed(&mut self, epoch: u64, timers: Vec<CallTimer>, now: Tick) {
        (self.epoch, self.step, self.timers) = (epoch, 0, timers);
        self.enter(Phase::Idle, now);
        for rank in &mut self.ranks {
            (rank.heard, rank.health) = (Some(now), Health::Up);
        }
    }

    pub fn enter(&mut self, phase: Phase, now: Tick) {
        (self.phase, self.since) = (phase, now);
    }

    /// A command was carried out: so every rank was there.
    pub fn done(&mut self, step: u64, figures: Option<&[RankFigures]>, now: Tick) {
        self.step = step;
        self.enter(Phase::Idle, now);
        self.ranks.iter_mut().for_each(|rank| rank.heard = Some(now));
        for (rank, figures) in self.ranks.iter_mut().zip(figures.unwrap_or_default()) {
            rank.figures = *figures;
        }
    }

    /// The group is over. Ranks of which nothing is known have to join again.
    pub fn failed(&mut self, error: &RankError, now: Tick) {
        self.timers.clear();
        self.enter(Phase::Forming, now);
        let culprit = error.rank();
        for (index, rank) in self.ranks.iter_mut().enumerate().skip(1) {
            rank.health = match culprit {
                Some(culprit) if culprit != index => Health::Missing,
                _ => Health::Gone { reason: error.to_string() },
            };
        }
    }

    /// These ranks have not joined yet; the others have. What is known of why they went stays.
    pub fn missing(&mut self, ranks: &[usize]) {
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            match (ranks.contains(&index), &rank.health) {
                (true, Health::Gone { .. }) => {}
                (true, _) => rank.health = Health::Missing,
                (false, _) => rank.health = Health::Up,
            }
        }
    }

    /// The ranks that have to join before the group can serve; none where it is whole.
    #[must_use]
    pub fn awaited(&self) -> Vec<usize> {
        if self.phase != Phase::Forming {
            return Vec::new();
        }
        let away = |rank: &RankReport| !matches!(rank.health, Health::Up);
        (0..).zip(&self.ranks).filter(|(_, rank)| away(rank)).map(|(index, _)| index).collect()
    }

    /// How each rank is now, in the order of the ranks. The leader cannot see which of several others it waits for.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        let waits = self.timers.iter().filter_map(CallTimer::in_call).max();
        let waits = waits.filter(|&time| time >= SLOW_AFTER);
        let health = |(index, rank): (usize, &RankReport)| match (&rank.health, waits) {
            (Health::Up, Some(time)) if index > 0 => Health::Slow(time),
            (health, _) => health.clone(),
        };
        self.ranks.iter().enumerate().map(health).collect()
    }
}

#[cfg(test)]
mod tests {
    use hawser_device::collective::CollectiveError;

    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(Duration::from_secs(seconds))
    }

    #[test]
    fn figures_travel_as_numbers() {
        let figures = RankFigures {
            step: 7,
            weight_bytes: 1 << 40,
            kv_bytes: 9,
            threads: 2,
            computing_us: 11,
            across_us: 12,
        };
        assert_eq!(RankFigures::of(&figures.numbers()), figures);
        assert_eq!(RankFigures::of(&[]), RankFigures::default());
    }

    #[test]
    fn p22_the_rank_that_went_is_named_until_it_is_back() {
        let mut group = GroupReport::new(3, at(0));
        assert_eq!(group.health(), [Health::Missing, Health::Missing, Health::Missing]);
        group.formed(1, Vec::new(), at(1));
        group.enter(Phase::Running, at(2));
        let figures = [1, 2, 3].map(|step| RankFigures { step, ..RankFigures::default() });
        group.done(40, Some(&figures), at(3));
        assert_eq!((group.phase, group.step, group.ranks[2].figures.step), (Phase::Idle, 40, 3));
        assert_eq!(group.health(), [Health::Up, Health::Up, Health::Up]);
        let error = CollectiveError::Gone { rank: 2, reason: "it closed the connection".to_owned() };
        group.failed(&RankError::Group(error), at(4));
        group.missing(&[1, 2]);
        let [leader, bystander, culprit] = &group.health()[..] else { panic!("three ranks") };
        assert_eq!((leader, bystander), (&Health::Up, &Health::Missing));
        assert!(matches!(culprit, Health::Gone { reason } if reason.contains("closed")), "{culprit:?}");
        assert_eq!((group.phase, group.ranks[2].heard), (Phase::Forming, Some(at(3))));
        assert_eq!(group.awaited(), [1, 2]);
        group.missing(&[1]);
        assert_eq!(group.health(), [Health::Up, Health::Missing, Health::Up]);
        assert_eq!(group.awaited(), [1]);
        group.formed(2, Vec::new(), at(5));
        assert_eq!(group.health(), [Health::Up, Health::Up, Health::Up]);
        assert!(group.awaited().is_empty());
    }
}

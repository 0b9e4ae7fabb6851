//! How a group's ranks are, on the wire.

use hawser_common::clock::Tick;
use hawser_proto::v1;

use crate::ranks::{GroupReport, Health, Phase, RankReport};

/// The report as of `now`.
pub(super) fn state(report: &GroupReport, now: Tick) -> v1::GroupState {
    let phase = match report.phase {
        Phase::Forming => v1::GroupPhase::Forming,
        Phase::Idle => v1::GroupPhase::Idle,
        Phase::Running => v1::GroupPhase::Running,
        Phase::Scoring => v1::GroupPhase::Scoring,
    };
    let ranks = (0..).zip(&report.ranks).zip(report.health());
    v1::GroupState {
        phase: phase.into(),
        phase_ms: millis(report.since, now),
        rank_epoch: report.epoch,
        step: report.step,
        ranks: ranks.map(|((number, rank), health)| wire_rank(report, (number, rank), health, now)).collect(),
    }
}

fn wire_rank(
    report: &GroupReport,
    (number, rank): (u32, &RankReport),
    health: Health,
    now: Tick,
) -> v1::Rank {
    let (health, reason) = match health {
        Health::Missing => (v1::RankHealth::Missing, String::new()),
        Health::Up => (v1::RankHealth::Up, String::new()),
        Health::Slow(_) => (v1::RankHealth::Slow, String::new()),
        Health::Gone { reason } => (v1::RankHealth::Gone, reason),
    };
    let figures = rank.figures;
    let (kv_bytes, archive_bytes) = report.pool_and_archive(&figures);
    v1::Rank {
        rank: number,
        health: health.into(),
        heard_ms: rank.heard.map(|heard| millis(heard, now)),
        step: figures.step,
        weight_bytes: figures.weight_bytes,
        kv_bytes,
        archive_bytes,
        threads: u32::try_from(figures.threads).unwrap_or(u32::MAX),
        computing_us: figures.computing_us,
        across_us: figures.across_us,
        reason,
    }
}

fn millis(then: Tick, now: Tick) -> u64 {
    u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_pool_and_the_archive_are_told_apart() {
        let mut report = GroupReport::new(1, Tick::default()).with_slots(300, 100);
        report.ranks[0].figures.kv_bytes = 4_000;
        let wire = state(&report, Tick::default());
        assert_eq!((wire.ranks[0].kv_bytes, wire.ranks[0].archive_bytes), (3_000, 1_000));
        let alone = state(&report.with_slots(400, 0), Tick::default());
        assert_eq!((alone.ranks[0].kv_bytes, alone.ranks[0].archive_bytes), (4_000, 0));
    }

    #[test]
    fn a_group_that_waits_for_a_rank_says_so() {
        let at = |seconds| Tick(Duration::from_secs(seconds));
        let mut report = GroupReport::new(2, at(0));
        report.missing(&[1]);
        let wire = state(&report, at(3));
        assert_eq!((wire.phase(), wire.phase_ms), (v1::GroupPhase::Forming, 3_000));
        let health: Vec<_> =
            wire.ranks.iter().map(|rank| (rank.rank, rank.health(), rank.heard_ms)).collect();
        assert_eq!(health, [(0, v1::RankHealth::Up, None), (1, v1::RankHealth::Missing, None)]);
        report.formed(1, Vec::new(), at(4));
        report.enter(Phase::Running, at(5));
        let wire = state(&report, at(7));
        assert_eq!((wire.phase(), wire.phase_ms, wire.rank_epoch), (v1::GroupPhase::Running, 2_000, 1));
        assert!(
            wire.ranks.iter().all(|rank| rank.health() == v1::RankHealth::Up && rank.heard_ms == Some(3_000))
        );
    }
}

//! The ranks of groups, as a table and as JSON.

use std::time::Duration;

use hawser_client::wire;
use serde::Serialize;

use crate::console::{bytes, count, time};
use crate::table::{Align, Table};

/// How a group's ranks are, as its leader sees them.
#[derive(Debug, Serialize)]
pub(super) struct State {
    /// forming, idle, running or scoring.
    phase: &'static str,
    phase_ms: u64,
    rank_epoch: u64,
    step: u64,
    ranks: Vec<Rank>,
}

#[derive(Debug, Serialize)]
struct Rank {
    rank: u32,
    /// up, slow, missing or gone.
    health: &'static str,
    /// Why it is gone.
    reason: String,
    heard_ms: Option<u64>,
    step: u64,
    weight_bytes: u64,
    /// Of the pool.
    kv_bytes: u64,
    archive_bytes: u64,
    threads: u32,
    computing_us: u64,
    across_us: u64,
}

impl State {
    pub(super) fn of(wire: wire::GroupState) -> Self {
        let phase = match wire.phase() {
            wire::GroupPhase::Forming => "forming",
            wire::GroupPhase::Idle => "idle",
            wire::GroupPhase::Running => "running",
            wire::GroupPhase::Scoring => "scoring",
            wire::GroupPhase::Unspecified => "unknown",
        };
        Self {
            phase,
            phase_ms: wire.phase_ms,
            rank_epoch: wire.rank_epoch,
            step: wire.step,
            ranks: wire.ranks.into_iter().map(Rank::of).collect(),
        }
    }
}

impl Rank {
    fn of(wire: wire::Rank) -> Self {
        let health = match wire.health() {
            wire::RankHealth::Missing => "missing",
            wire::RankHealth::Up => "up",
            wire::RankHealth::Slow => "slow",
            wire::RankHealth::Gone => "gone",
            wire::RankHealth::Unspecified => "unknown",
        };
        Self {
            rank: wire.rank,
            health,
            reason: wire.reason,
            heard_ms: wire.heard_ms,
            step: wire.step,
            weight_bytes: wire.weight_bytes,
            kv_bytes: wire.kv_bytes,
            archive_bytes: wire.archive_bytes,
            threads: wire.threads,
            computing_us: wire.computing_us,
            across_us: wire.across_us,
        }
    }

    /// Of the time that it was busy, the part that it computed.
    fn computing(&self) -> String {
        match self.computing_us + self.across_us {
            0 => "-".to_owned(),
            all => format!("{:.0} %", 100.0 * self.computing_us as f64 / all as f64),
        }
    }
}

/// The ranks of the groups that have several; `None` where none has.
pub(super) fn ranks_table<'a>(groups: impl Iterator<Item = (&'a str, Option<&'a State>)>) -> Option<Table> {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("GROUP", left),
        ("RANK", right),
        ("HEALTH", left),
        ("PHASE", left),
        ("STEP", right),
        ("WEIGHTS", right),
        ("KV POOL", right),
        ("ARCHIVE", right),
        ("THREADS", right),
        ("COMPUTES", right),
        ("HEARD", left),
        ("WHY", left),
    ]);
    let several = groups.filter_map(|(id, state)| Some((id, state.filter(|state| state.ranks.len() > 1)?)));
    let mut any = false;
    for (id, state) in several {
        any = true;
        let ago = |ms| format!("{} ago", time(Duration::from_millis(ms)));
        for rank in &state.ranks {
            table.row(vec![
                id.to_owned(),
                rank.rank.to_string(),
                rank.health.to_owned(),
                state.phase.to_owned(),
                count(rank.step),
                bytes(rank.weight_bytes),
                bytes(rank.kv_bytes),
                bytes(rank.archive_bytes),
                rank.threads.to_string(),
                rank.computing(),
                rank.heard_ms.map_or_else(|| "never".to_owned(), ago),
                rank.reason.clone(),
            ]);
        }
    }
    any.then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_gone_is_shown_with_the_reason() {
        let rank = |rank, health: wire::RankHealth, reason: &str| wire::Rank {
            rank,
            health: health.into(),
            step: 1_234,
            weight_bytes: 50 << 20,
            kv_bytes: 300 << 20,
            archive_bytes: 100 << 20,
            computing_us: 3,
            across_us: 1,
            heard_ms: Some(1_500),
            reason: reason.to_owned(),
            ..Default::default()
        };
        let ranks = vec![
            rank(0, wire::RankHealth::Up, ""),
            rank(1, wire::RankHealth::Gone, "it closed the connection"),
        ];
        let phase = wire::GroupPhase::Forming.into();
        let state = State::of(wire::GroupState { phase, ranks, ..Default::default() });
        let alone = State::of(wire::GroupState { ranks: vec![wire::Rank::default()], ..Default::default() });
        let shown = ranks_table([("g", Some(&state)), ("h", Some(&alone)), ("i", None)].into_iter());
        let shown = shown.expect("a group of two").to_string();
        for part in [
            "314.6 MB",
            "104.9 MB",
            "up",
            "gone",
            "forming",
            "1,234",
            "75 %",
            "1.50 s ago",
            "it closed the connection",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert!(!shown.contains("h "), "a group of one has no ranks to show:\n{shown}");
        assert!(ranks_table([("h", Some(&alone))].into_iter()).is_none());
    }
}

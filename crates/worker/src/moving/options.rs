//! Configuration of giving sessions away for the sake of balance.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rebalance::Options;
use crate::options::InvalidOptions;

/// When a group gives sessions away although it does not leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalanceOptions {
    /// Give sessions to groups of the same model that are less loaded, and take them from those that are more.
    pub enabled: bool,
    /// Between two looks, at each of which one session may go.
    pub period_ms: u64,
    /// How long a session stays that came from another group.
    pub session_stay_s: u64,
    /// How long a group that took a session gives none, and one that gave one takes none.
    pub group_rest_s: u64,
    /// What a move saves is at least so many times what it costs.
    pub gain_factor: u64,
    /// Speed of moves between groups, before one was measured.
    pub mib_per_s: u64,
}

impl Default for BalanceOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            period_ms: 2_000,
            session_stay_s: 300,
            group_rest_s: 30,
            gain_factor: 2,
            mib_per_s: 100,
        }
    }
}

impl BalanceOptions {
    pub(crate) fn validate(&self) -> Result<(), InvalidOptions> {
        let checks = [
            ("rebalance.period_ms", self.period_ms, 10..=600_000, "10 to 600000"),
            ("rebalance.session_stay_s", self.session_stay_s, 0..=604_800, "0 to 604800"),
            ("rebalance.group_rest_s", self.group_rest_s, 0..=604_800, "0 to 604800"),
            ("rebalance.gain_factor", self.gain_factor, 1..=1_000, "1 to 1000"),
            ("rebalance.mib_per_s", self.mib_per_s, 1..=1_000_000, "1 to 1000000"),
        ];
        for (key, found, range, allowed) in checks {
            if !range.contains(&found) {
                return Err(InvalidOptions::Value { key, found, allowed });
            }
        }
        Ok(())
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    pub(crate) fn bytes_per_s(&self) -> f64 {
        (self.mib_per_s << 20) as f64
    }

    pub(crate) fn bounds(&self) -> Options {
        Options {
            session_stay: Duration::from_secs(self.session_stay_s),
            group_rest: Duration::from_secs(self.group_rest_s),
            gain_factor: self.gain_factor as f64,
        }
    }
}

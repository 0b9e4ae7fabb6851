//! Configuration of a router.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hawser_common::{Coded, ErrorCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::strategy::Strategy;

/// What a router can be told. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterOptions {
    /// Where the router listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Most calls in flight; more are refused with RESOURCE_EXHAUSTED.
    pub max_in_flight: usize,
    /// Most sessions whose owner is remembered. Sessions beyond work as well, at the cost of one redirect a turn.
    pub max_sessions: usize,
    /// Most groups that one call is offered to before it is refused.
    pub max_attempts: u32,
    /// Longest that connecting to a group may take.
    pub connect_timeout_ms: u64,
    /// Longest that a call other than a turn may take at a group.
    pub call_timeout_ms: u64,
    /// Longest that a call waits for a group that owns its session and does not answer. Once the store says that the
    /// group's lease has ended, the session is placed anew, so this should exceed the workers' lease time.
    pub owner_wait_ms: u64,
    /// Seed of the random choices; drawn if absent.
    pub seed: Option<u64>,
    /// How calls without an owner are placed: no key, but set by benchmarks that compare.
    #[serde(skip)]
    pub strategy: Strategy,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7341)),
            max_in_flight: 4_096,
            max_sessions: 1_000_000,
            max_attempts: 5,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 10_000,
            owner_wait_ms: 30_000,
            seed: None,
            strategy: Strategy::Balanced,
        }
    }
}

/// An option out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{option} is {found}; allowed are {low} to {high}")]
pub struct InvalidOptions {
    pub option: &'static str,
    pub found: u64,
    pub low: u64,
    pub high: u64,
}

impl Coded for InvalidOptions {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl RouterOptions {
    /// # Errors
    /// [`InvalidOptions`] names the first option out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let check = |option, found: u64, low: u64, high: u64| {
            if (low..=high).contains(&found) {
                Ok(())
            } else {
                Err(InvalidOptions { option, found, low, high })
            }
        };
        check("max_in_flight", self.max_in_flight as u64, 1, 1 << 20)?;
        check("max_sessions", self.max_sessions as u64, 1, 100_000_000)?;
        check("max_attempts", self.max_attempts.into(), 1, 100)?;
        check("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000)?;
        check("call_timeout_ms", self.call_timeout_ms, 1, 600_000)?;
        check("owner_wait_ms", self.owner_wait_ms, 0, 600_000)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    pub(crate) fn owner_wait(&self) -> Duration {
        Duration::from_millis(self.owner_wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_legal_and_bounds_are_checked() {
        let ok = RouterOptions::default();
        assert_eq!(ok.validate(), Ok(()));
        let error = RouterOptions { max_in_flight: 0, ..ok.clone() }.validate().unwrap_err();
        assert_eq!(error.option, "max_in_flight");
        let error = RouterOptions { owner_wait_ms: u64::MAX, ..ok }.validate().unwrap_err();
        assert_eq!(error.option, "owner_wait_ms");
    }
}

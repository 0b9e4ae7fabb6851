//! What one tenant may take of a router: the limits, and the pure state that holds them ([`fair`], [`bucket`],
//! [`opening`]). Written by hand rather than with tower's layers, which count over all callers of a service: here every
//! tenant has counts of its own, and one that waits must not stand before another.

pub(crate) mod bucket;
pub(crate) mod fair;
pub(crate) mod opening;

use serde::{Deserialize, Serialize};

use crate::options::InvalidOptions;

/// Limits of one tenant at one router; 0 means no limit where the key says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Calls in flight, running turns above all; one more waits in the tenant's queue.
    pub max_in_flight: u32,
    /// Calls that wait for a place; one more is refused. 0: none waits.
    pub max_queued: u32,
    /// Open sessions in the whole cluster; a new one beyond is refused.
    pub max_sessions: u64,
    /// Calls per second, on average; one that comes sooner is refused. 0: no limit.
    pub requests_per_s: u32,
    /// Calls that may come at once after a pause; 0: those of one second.
    pub burst: u32,
    /// Share of the router's places when tenants wait for them: one with weight 2 is served twice as often.
    pub weight: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            max_in_flight: 4_096,
            max_queued: 256,
            max_sessions: 100_000,
            requests_per_s: 0,
            burst: 0,
            weight: 1,
        }
    }
}

impl Quota {
    /// # Errors
    /// [`InvalidOptions`] names the first limit out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let check = InvalidOptions::check;
        check("quota.max_in_flight", self.max_in_flight.into(), 1, 1 << 20)?;
        check("quota.max_queued", self.max_queued.into(), 0, 1 << 16)?;
        check("quota.max_sessions", self.max_sessions, 1, 100_000_000)?;
        check("quota.requests_per_s", self.requests_per_s.into(), 0, 1_000_000)?;
        check("quota.burst", self.burst.into(), 0, 1_000_000)?;
        check("quota.weight", self.weight.into(), 1, 1_000)
    }
}

/// What a tenant has instead of the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuotaChoice {
    max_in_flight: Option<u32>,
    max_queued: Option<u32>,
    max_sessions: Option<u64>,
    requests_per_s: Option<u32>,
    burst: Option<u32>,
    weight: Option<u32>,
}

impl QuotaChoice {
    pub(crate) fn over(&self, defaults: &Quota) -> Quota {
        Quota {
            max_in_flight: self.max_in_flight.unwrap_or(defaults.max_in_flight),
            max_queued: self.max_queued.unwrap_or(defaults.max_queued),
            max_sessions: self.max_sessions.unwrap_or(defaults.max_sessions),
            requests_per_s: self.requests_per_s.unwrap_or(defaults.requests_per_s),
            burst: self.burst.unwrap_or(defaults.burst),
            weight: self.weight.unwrap_or(defaults.weight),
        }
    }
}

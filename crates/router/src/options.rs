//! Configuration of a router.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hawser_common::tls::{ClientTls, InvalidTls, ServerTls};
use hawser_common::{Coded, ErrorCode, Keepalive};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::auth::AuthOptions;
use crate::quota::Quota;
use crate::strategy::Strategy;

/// What a router can be told. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterOptions {
    /// Where the router listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Most calls in flight; more wait in the queues of their tenants.
    pub max_in_flight: usize,
    /// Longest that a call waits there before it is refused with RESOURCE_EXHAUSTED.
    pub queue_wait_ms: u64,
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
    /// Time between two lists of the whole store, beside the changes that it tells, a fifth more or less; 0: never. At
    /// most twice the workers' lease time less a fifth, a group whose end was missed is gone within two of them.
    pub relist_ms: u64,
    /// How often one turn may go on at another group after its own was lost in mid-stream: 0 to 2.
    pub continuations: u32,
    /// What is kept of running turns, so that they can go on elsewhere: requests and delivered tokens. A turn that finds
    /// no room ends where its group is lost.
    pub continuation_memory_mib: u64,
    /// Seed of the random choices; drawn if absent.
    pub seed: Option<u64>,
    /// Who may call.
    pub auth: AuthOptions,
    /// What one tenant may take, unless the file of keys says otherwise.
    pub quota: Quota,
    /// What the router shows to its clients.
    pub tls: ServerTls,
    /// How the router talks to the worker groups.
    pub worker_tls: ClientTls,
    /// Of the connections to both. Not a key: every hop has the same.
    #[serde(skip)]
    pub keepalive: Keepalive,
    /// How calls without an owner are placed: no key, but set by benchmarks that compare.
    #[serde(skip)]
    pub strategy: Strategy,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7341)),
            max_in_flight: 4_096,
            queue_wait_ms: 5_000,
            max_sessions: 1_000_000,
            max_attempts: 5,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 10_000,
            owner_wait_ms: 30_000,
            relist_ms: 15_000,
            continuations: 1,
            continuation_memory_mib: 256,
            seed: None,
            auth: AuthOptions::default(),
            quota: Quota::default(),
            tls: ServerTls::default(),
            worker_tls: ClientTls::default(),
            keepalive: Keepalive::default(),
            strategy: Strategy::Balanced,
        }
    }
}

/// An option that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidOptions {
    #[error("{option} is {found}; allowed are {low} to {high}")]
    Bounds { option: &'static str, found: u64, low: u64, high: u64 },
    #[error("{table}: {source}")]
    Tls { table: &'static str, source: InvalidTls },
}

impl Coded for InvalidOptions {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl InvalidOptions {
    pub(crate) fn check(option: &'static str, found: u64, low: u64, high: u64) -> Result<(), Self> {
        if (low..=high).contains(&found) { Ok(()) } else { Err(Self::Bounds { option, found, low, high }) }
    }
}

impl RouterOptions {
    /// # Errors
    /// [`InvalidOptions`] names the first option that cannot be meant. Files are read at the start, not here.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let check = InvalidOptions::check;
        check("max_in_flight", self.max_in_flight as u64, 1, 1 << 20)?;
        check("queue_wait_ms", self.queue_wait_ms, 0, 600_000)?;
        check("max_sessions", self.max_sessions as u64, 1, 100_000_000)?;
        check("max_attempts", self.max_attempts.into(), 1, 100)?;
        check("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000)?;
        check("call_timeout_ms", self.call_timeout_ms, 1, 600_000)?;
        check("owner_wait_ms", self.owner_wait_ms, 0, 600_000)?;
        check("relist_ms", self.relist_ms, 0, 3_600_000)?;
        check("continuations", self.continuations.into(), 0, 2)?;
        check("continuation_memory_mib", self.continuation_memory_mib, 0, 65_536)?;
        check("auth.poll_ms", self.auth.poll_ms, 10, 600_000)?;
        self.quota.validate()?;
        let tls = |table| move |source| InvalidOptions::Tls { table, source };
        self.tls.validate().map_err(tls("tls"))?;
        self.worker_tls.validate().map_err(tls("worker_tls"))
    }

    pub(crate) fn queue_wait(&self) -> Duration {
        Duration::from_millis(self.queue_wait_ms)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    pub(crate) fn relist(&self) -> Option<Duration> {
        (self.relist_ms > 0).then(|| Duration::from_millis(self.relist_ms))
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
        let check = |options: RouterOptions, says: &str| {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        check(RouterOptions { max_in_flight: 0, ..ok.clone() }, "max_in_flight is 0");
        check(RouterOptions { owner_wait_ms: u64::MAX, ..ok.clone() }, "owner_wait_ms is");
        let quota = Quota { weight: 0, ..Quota::default() };
        check(RouterOptions { quota, ..ok.clone() }, "quota.weight is 0");
        let tls = ServerTls { cert_file: Some("x.pem".into()), ..ServerTls::default() };
        check(RouterOptions { tls, ..ok }, "tls: cert_file needs key_file");
    }
}

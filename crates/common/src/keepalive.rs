//! How every hop keeps a silent connection alive: one pair of times for clients, routers, workers and the store.
//!
//! A connection that carries nothing is asked for a sign of life (an HTTP/2 ping) after [`INTERVAL`], by both of its
//! ends, and given up when there is none within [`TIMEOUT`]. The hops must agree: a server that allows fewer pings than
//! its client sends ends the connection ("too_many_pings"), and a proxy between them forgets what was silent for
//! longer than its own limit, a minute with many. Hawser's servers allow any number of pings; etcd allows one every five
//! seconds, and only on connections with open calls.

use std::time::Duration;

/// Longest silence on a connection before its other end is asked for a sign of life.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for that sign. A process that computes on every core answers late.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// The times of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    pub interval: Duration,
    pub timeout: Duration,
}

impl Keepalive {
    /// The shorter times of both.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self { interval: self.interval.min(other.interval), timeout: self.timeout.min(other.timeout) }
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: INTERVAL, timeout: TIMEOUT }
    }
}

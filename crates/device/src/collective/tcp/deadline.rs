//! How long a call may take, and how it waits: it first tries again and again, because most answers come within
//! microseconds, and then sleeps until a connection is ready.
//!
//! Promises that a wait ends by the deadline. Never reads a socket.

use std::time::Duration;

use hawser_common::clock::{Clock, Tick};

use super::ready;
use super::transfer::Transfer;

/// How long a call tries again and again when nothing moves.
const SPIN: Duration = Duration::from_micros(100);

/// The time of one call.
#[derive(Debug)]
pub(super) struct Deadline {
    clock: Clock,
    timeout: Duration,
    /// Since when nothing has moved.
    idle_since: Option<Tick>,
}

/// What to do when nothing moved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    TryAgain,
    Sleep(Duration),
    Over,
}

impl Deadline {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { clock: Clock::system(), timeout, idle_since: None }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Something moved.
    pub(super) fn moved(&mut self) {
        self.idle_since = None;
    }

    /// Nothing moved.
    pub(super) fn idle(&mut self) -> Wait {
        let now = self.clock.now();
        let left = self.timeout.saturating_sub(now.0);
        let idle = now.since(*self.idle_since.get_or_insert(now));
        match (left.is_zero(), idle < SPIN) {
            (true, _) => Wait::Over,
            (false, true) => Wait::TryAgain,
            (false, false) => Wait::Sleep(left),
        }
    }
}

/// Sleeps until one of the connections with unfinished transfers is ready, or `longest` is over. What a connection has
/// read beyond a frame is not seen here: a transfer takes all that there is before it says that nothing moved.
pub(super) fn sleep(transfers: &[Transfer<'_>], longest: Duration) -> std::io::Result<()> {
    let unfinished = transfers.iter().filter(|transfer| !transfer.is_done());
    // Something may always come: the other end may say that the group is over.
    ready::wait(unfinished.map(|transfer| (&transfer.wire.connection, transfer.sends())), longest)
}

//! How long a call may take, and how it waits: it first tries again and again, because most answers come within
//! microseconds, and then sleeps until a connection is ready.
//!
//! Promises that a wait ends by the deadline. Never reads a socket.

use std::os::fd::AsRawFd;
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};

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

/// Sleeps until one of the connections with unfinished transfers is ready, or `longest` is over.
pub(super) fn sleep(transfers: &[Transfer<'_>], longest: Duration) -> std::io::Result<()> {
    let mut ready: Vec<libc::pollfd> = Vec::with_capacity(transfers.len());
    for transfer in transfers.iter().filter(|transfer| !transfer.is_done()) {
        // Something may always come: the other end may say that the group is over.
        let events = libc::POLLIN | if transfer.sends() { libc::POLLOUT } else { 0 };
        ready.push(libc::pollfd { fd: transfer.wire.stream.as_raw_fd(), events, revents: 0 });
    }
    // Rounded up: a wait of no time at all would be a busy one.
    let longest_ms = i32::try_from(longest.as_millis() + 1).unwrap_or(i32::MAX);
    // SAFETY: the pointer and the length are those of `ready`, which nobody else uses during the call.
    let result = unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, longest_ms) };
    if result >= 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error() {
        error if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

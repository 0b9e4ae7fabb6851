//! Waiting until sockets are ready: the one place where a connection between ranks is waited for.
//!
//! Promises that a wait ends in time. Never reads or writes.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Waits until one of the sockets has something to read or, where it is named with `true`, takes bytes, or `longest` is
/// over.
pub(super) fn wait<'a, S: AsRawFd + 'a>(
    sockets: impl Iterator<Item = (&'a S, bool)>,
    longest: Duration,
) -> io::Result<()> {
    let mut ready: Vec<libc::pollfd> = sockets
        .map(|(socket, writes)| {
            let events = libc::POLLIN | if writes { libc::POLLOUT } else { 0 };
            libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }
        })
        .collect();
    // Rounded up: a wait of no time at all would be a busy one.
    let longest_ms = i32::try_from(longest.as_millis() + 1).unwrap_or(i32::MAX);
    // SAFETY: the pointer and the length are those of `ready`, which nobody else uses during the call.
    let result = unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, longest_ms) };
    if result >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

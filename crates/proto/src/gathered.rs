//! Connections whose writes are gathered for one turn of the scheduler.
//!
//! An HTTP/2 client opens a stream, writes its headers out, and only then learns that there is room for the body, which
//! another task of the same runtime adds: two writes for each call, of which the first wakes the server for nothing. Here
//! a flush first lets every task run that is ready, and writes what all of them had to say at once.
//!
//! Promises the bytes in their order, and that a flush waits for no timer and no peer. What does not fit the buffer goes
//! out at once.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use tonic::transport::{Channel, Endpoint, Error};
use tower::{Service, ServiceExt as _};

/// Bytes that are held at most. Larger writes gain nothing by waiting for others.
const ROOM: usize = 8 << 10;

/// As [`Endpoint::connect_lazy`], with gathered writes.
#[must_use]
pub fn connect_lazy(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(connector())
}

/// As [`Endpoint::connect`], with gathered writes.
///
/// # Errors
/// As there.
pub async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    endpoint.connect_with_connector(connector()).await
}

/// Over TCP and without delays of the kernel's: what is gathered here is to go out. Encryption is put on top by the
/// endpoint, as is the limit on the time that it takes.
fn connector()
-> impl Service<Uri, Response = Gathered<Tcp>, Error = ConnectError, Future: Send> + Send + 'static {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.map_response(Gathered::new)
}

type Tcp = <HttpConnector as Service<Uri>>::Response;
type ConnectError = <HttpConnector as Service<Uri>>::Error;

/// See the head of this file.
#[derive(Debug)]
struct Gathered<T> {
    io: T,
    held: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    /// The others have had their turn since something was held.
    is_due: bool,
}

impl<T: Write + Unpin> Gathered<T> {
    fn new(io: T) -> Self {
        Self { io, held: Vec::new(), written: 0, is_due: false }
    }

    /// Holds `bytes` where there is room.
    fn hold<'a>(&mut self, bytes: impl Iterator<Item = &'a [u8]> + Clone) -> Option<usize> {
        let len: usize = bytes.clone().map(<[u8]>::len).sum();
        if self.held.len() + len > ROOM {
            return None;
        }
        bytes.for_each(|part| self.held.extend_from_slice(part));
        Some(len)
    }

    /// Writes out what is held.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while self.written < self.held.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        self.held.clear();
        (self.written, self.is_due) = (0, false);
        Poll::Ready(Ok(()))
    }
}

impl<T: Read + Unpin> Read for Gathered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for Gathered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if let Some(held) = self.hold(std::iter::once(bytes)) {
            return Poll::Ready(Ok(held));
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        if let Some(held) = self.hold(parts.iter().map(|part| &**part)) {
            return Poll::Ready(Ok(held));
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if !self.held.is_empty() && !self.is_due {
            self.is_due = true;
            // Woken at once: this task comes again behind those that are ready now.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// Takes a number of bytes at a time, and now and then nothing.
    #[derive(Default)]
    struct Wire {
        writes: Vec<Vec<u8>>,
        takes: Vec<usize>,
        polls: usize,
    }

    impl Write for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            let takes = self.takes.get(self.polls).copied().unwrap_or(usize::MAX).min(bytes.len());
            self.polls += 1;
            if takes == 0 {
                return Poll::Pending;
            }
            self.writes.push(bytes[..takes].to_vec());
            Poll::Ready(Ok(takes))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn flush(io: &mut Gathered<Wire>) -> Poll<()> {
        Pin::new(io).poll_flush(&mut Context::from_waker(Waker::noop())).map(|done| done.unwrap())
    }

    #[test]
    fn what_is_written_before_the_others_have_had_their_turn_goes_out_as_one() {
        let mut io = Gathered::new(Wire::default());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut io).poll_write(&mut cx, b"headers ").is_ready());
        assert!(flush(&mut io).is_pending(), "others first");
        assert!(Pin::new(&mut io).poll_write(&mut cx, b"body").is_ready());
        assert!(flush(&mut io).is_ready());
        assert_eq!(io.io.writes, [b"headers body"]);
        assert!(flush(&mut io).is_ready(), "nothing is held");
    }

    proptest! {
        /// Whatever is written, and however little the socket takes: all of it arrives, in its order.
        #[test]
        fn bytes_keep_their_order(
            sizes in prop::collection::vec(0usize..2 * ROOM, 1..12),
            takes in prop::collection::vec(prop_oneof![Just(0usize), 1usize..9_000], 0..60),
        ) {
            let mut io = Gathered::new(Wire { takes, ..Wire::default() });
            let mut cx = Context::from_waker(Waker::noop());
            let mut said = Vec::new();
            for (number, size) in sizes.into_iter().enumerate() {
                let message: Vec<u8> = (0..size).map(|at| (number * 31 + at) as u8).collect();
                let mut left = &message[..];
                while !left.is_empty() {
                    if let Poll::Ready(written) = Pin::new(&mut io).poll_write(&mut cx, left) {
                        left = &left[written.unwrap()..];
                    }
                }
                said.extend(message);
                if number % 3 == 0 {
                    while flush(&mut io).is_pending() {}
                    prop_assert_eq!(io.io.writes.concat(), &said[..]);
                }
            }
            while Pin::new(&mut io).poll_shutdown(&mut cx).is_pending() {}
            prop_assert_eq!(io.io.writes.concat(), said);
        }
    }
}

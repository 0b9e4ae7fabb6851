//! The body of an answer, as it comes.
//!
//! Gives the stream's window back with what it hands out and not before, so that a reader that stops stops its server.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use h2::{Reason, RecvStream};
use http_body::{Body, Frame};
use tonic::codegen::Bytes;

/// See the head of this file. Dropped before its end, it resets the stream.
#[derive(Debug)]
pub struct Answer {
    stream: RecvStream,
    has_data: bool,
}

impl Answer {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, has_data: true }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        while self.has_data {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.stream.flow_control().release_capacity(data.len())?;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // Resets that say no more than that there is no more (RFC 9113, 8.1).
                Some(Err(error)) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => {
                    return Poll::Ready(None);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.has_data = false,
            }
        }
        self.stream
            .poll_trailers(cx)
            .map(|trailers| trailers.transpose().map(|found| found.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

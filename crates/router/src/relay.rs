//! A turn's stream from the worker to the client, frame by frame.
//!
//! No task and no queue: polling this polls the worker's stream, so a slow client slows its own worker stream by flow
//! control and nothing else. Dropping it drops the worker's stream, which cancels the turn. Ends well only after a
//! `Finished` frame.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use hawser_common::{ErrorCode, GroupId};
use hawser_proto::fault::Origin;
use hawser_proto::v1::GenerateResponse;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{Fault, fault, status};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};

use crate::admission::Permit;
use crate::error::RouteError;
use crate::fleet::InFlight;
use crate::metrics::TurnWatch;

/// What is held until a stream ends.
pub(crate) type Holds = (Permit, InFlight);

/// When a stream is ended from here.
pub(crate) struct Ends {
    pub(crate) deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    /// The router stops, and has waited long enough.
    pub(crate) cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

pub(crate) struct Relay {
    group: GroupId,
    first: Option<GenerateResponse>,
    /// `None` once the stream has ended.
    open: Option<Open>,
    frames: u64,
    finished: bool,
    watch: TurnWatch,
}

struct Open {
    upstream: Streaming<GenerateResponse>,
    ends: Ends,
    _holds: Holds,
}

impl Relay {
    /// `first` was taken from `upstream` already.
    pub(crate) fn new(
        group: GroupId,
        first: GenerateResponse,
        upstream: Streaming<GenerateResponse>,
        ends: Ends,
        (holds, watch): (Holds, TurnWatch),
    ) -> Self {
        let open = Some(Open { upstream, ends, _holds: holds });
        Self { group, first: Some(first), open, frames: 0, finished: false, watch }
    }

    fn deliver(&mut self, frame: GenerateResponse) -> Poll<Option<Result<GenerateResponse, Status>>> {
        self.frames += 1;
        self.watch.frame();
        self.finished |= matches!(frame.frame, Some(Frame::Finished(_)));
        Poll::Ready(Some(Ok(frame)))
    }

    /// Ends the stream. After `Finished` nothing that happens can take the turn back.
    fn end(&mut self, error: Option<RouteError>) -> Poll<Option<Result<GenerateResponse, Status>>> {
        self.open = None;
        if self.finished {
            self.watch.ended(None, self.frames);
            return Poll::Ready(None);
        }
        let error = error.unwrap_or_else(|| {
            let reason = "its stream ended without a result".to_owned();
            RouteError::CutShort { group: self.group.clone(), frames: self.frames, reason }
        });
        self.watch.ended(Some(&error), self.frames);
        Poll::Ready(Some(Err(status(&error))))
    }

    /// What the client is told when the worker's stream fails.
    fn failed(&self, fault: Fault) -> RouteError {
        match (fault.origin, fault.code) {
            (Origin::Answered, _) => RouteError::Worker(fault),
            (_, ErrorCode::Deadline) => RouteError::Deadline,
            (Origin::Connect | Origin::Transport, _) => {
                let reason = fault.message;
                RouteError::CutShort { group: self.group.clone(), frames: self.frames, reason }
            }
        }
    }
}

impl Stream for Relay {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return this.deliver(first);
        }
        loop {
            let Some(open) = this.open.as_mut() else { return Poll::Ready(None) };
            if let Some(deadline) = open.ends.deadline.as_mut()
                && deadline.as_mut().poll(cx).is_ready()
            {
                return this.end(Some(RouteError::Deadline));
            }
            if open.ends.cut.as_mut().poll(cx).is_ready() {
                return this.end(Some(RouteError::ShuttingDown));
            }
            return match ready!(Pin::new(&mut open.upstream).poll_next(cx)) {
                // Read to its end, because dropping it earlier would cancel a turn that is done.
                Some(Ok(_)) if this.finished => continue,
                Some(Ok(frame)) => this.deliver(frame),
                Some(Err(error)) => {
                    let error = this.failed(fault(&error));
                    this.end(Some(error))
                }
                None => this.end(None),
            };
        }
    }
}

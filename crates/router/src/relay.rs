//! A turn's stream from the worker to the client, frame by frame.
//!
//! No task and no queue: polling this polls the worker's stream, so a slow client slows its own worker stream by flow
//! control and nothing else. Dropping it drops the worker's stream, which cancels the turn. Ends well only after a
//! `Finished` frame. Where the worker is lost in between, another group may go on with the turn: the client sees one
//! answer, each token once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use hawser_common::hint::without_hint;
use hawser_common::{ErrorCode, GroupId};
use hawser_proto::fault::Origin;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::v1::{ContinueFrom, GenerateResponse, Placed};
use hawser_proto::{Fault, fault, status};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};
use tracing::{info, warn};

use crate::admission::Permit;
use crate::continuation::{Delivered, Kept, is_loss};
use crate::error::RouteError;
use crate::fleet::InFlight;
use crate::metrics::TurnWatch;

/// When a stream is ended from here.
pub(crate) struct Ends {
    pub(crate) deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    /// The router stops, and has waited long enough.
    pub(crate) cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// The turn at one group.
pub(crate) struct Part {
    pub(crate) group: GroupId,
    /// Taken from `upstream` already.
    pub(crate) first: Option<GenerateResponse>,
    pub(crate) upstream: Streaming<GenerateResponse>,
    /// Its place in the group's count.
    pub(crate) _in_flight: InFlight,
}

/// Finds another group for the rest of a turn; told which one was lost.
pub(crate) type Reopen =
    Box<dyn Fn(ContinueFrom, GroupId) -> BoxFuture<'static, Result<Part, RouteError>> + Send>;

/// What it takes to go on elsewhere.
pub(crate) struct Resume {
    pub(crate) left: u32,
    pub(crate) kept: Kept,
    pub(crate) reopen: Reopen,
}

pub(crate) struct Relay {
    delivered: Delivered,
    /// `None` once the stream has ended.
    open: Option<Open>,
    /// `None`: the turn ends where its group is lost.
    resume: Option<Resume>,
    /// Where it went on.
    continued: Vec<Placed>,
    watch: TurnWatch,
}

struct Open {
    source: Source,
    ends: Ends,
    _permit: Permit,
}

enum Source {
    Group(Box<Part>),
    Lost(Lost),
}

/// Between two groups.
struct Lost {
    group: GroupId,
    reason: String,
    next: BoxFuture<'static, Result<Part, RouteError>>,
}

type Item = Option<Result<GenerateResponse, Status>>;

impl Relay {
    pub(crate) fn new(
        part: Part,
        resume: Option<Resume>,
        ends: Ends,
        (permit, watch): (Permit, TurnWatch),
    ) -> Self {
        let open = Some(Open { source: Source::Group(Box::new(part)), ends, _permit: permit });
        Self { delivered: Delivered::default(), open, resume, continued: Vec::new(), watch }
    }

    fn deliver(&mut self, mut response: GenerateResponse) -> Poll<Item> {
        if let Some(Frame::Finished(finished)) = &mut response.frame {
            finished.continued = std::mem::take(&mut self.continued);
        }
        self.watch.frame();
        self.delivered.count(&response, self.resume.is_some());
        let tokens = self.delivered.tokens();
        if self.resume.as_mut().is_some_and(|resume| !resume.kept.covers(tokens)) {
            self.resume = None;
            self.delivered.forget();
        }
        Poll::Ready(Some(Ok(response)))
    }

    /// Ends the stream. After `Finished` nothing that happens can take the turn back.
    fn end(&mut self, error: &RouteError) -> Poll<Item> {
        self.open = None;
        self.resume = None;
        let (finished, frames) = (self.delivered.finished, self.delivered.frames);
        self.watch.ended((!finished).then_some(error), frames);
        Poll::Ready((!finished).then(|| Err(status(error))))
    }

    /// The group's stream is over: with this fault, or without a word.
    fn broke(&mut self, group: GroupId, fault: Option<Fault>) -> Option<RouteError> {
        let loss = fault.as_ref().is_none_or(is_loss) && !self.delivered.finished;
        let frames = self.delivered.frames;
        let reason = match &fault {
            Some(fault) => fault.message.clone(),
            None => "its stream ended without a result".to_owned(),
        };
        if let (true, Some(open), Some(resume)) = (loss, &mut self.open, &mut self.resume)
            && resume.left > 0
        {
            resume.left -= 1;
            info!(%group, %reason, tokens = self.delivered.tokens(), "a group was lost in mid-stream; going on elsewhere");
            let next = (resume.reopen)(self.delivered.point(), group.clone());
            open.source = Source::Lost(Lost { group, reason, next });
            return None;
        }
        Some(match fault {
            Some(fault) if fault.origin == Origin::Answered => RouteError::Worker(fault),
            Some(fault) if fault.code == ErrorCode::Deadline => RouteError::Deadline,
            _ => RouteError::CutShort { group, frames, reason },
        })
    }

    /// Another group has taken the turn up, or none has.
    fn reopened(&mut self, lost: (GroupId, String), next: Result<Part, RouteError>) -> Option<RouteError> {
        let (group, reason) = lost;
        let why = match next {
            Ok(mut part) => match self.delivered.taken_up(part.first.take()) {
                Some(placed) => {
                    self.continued.push(placed);
                    self.open.as_mut()?.source = Source::Group(Box::new(part));
                    return None;
                }
                None => format!("group {} cannot go on with answers", part.group),
            },
            Err(RouteError::Deadline) => return Some(RouteError::Deadline),
            Err(error) => without_hint(&error.to_string()).to_owned(),
        };
        warn!(%group, %reason, %why, "a turn could not go on elsewhere");
        let reason = format!("{}, and the turn could not go on elsewhere ({why})", without_hint(&reason));
        Some(RouteError::CutShort { group, frames: self.delivered.frames, reason })
    }
}

impl Stream for Relay {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Item> {
        let this = self.get_mut();
        loop {
            let Some(open) = this.open.as_mut() else { return Poll::Ready(None) };
            if let Some(deadline) = open.ends.deadline.as_mut()
                && deadline.as_mut().poll(cx).is_ready()
            {
                return this.end(&RouteError::Deadline);
            }
            if open.ends.cut.as_mut().poll(cx).is_ready() {
                return this.end(&RouteError::ShuttingDown);
            }
            let error = match &mut open.source {
                Source::Group(part) => {
                    let frame = match part.first.take() {
                        Some(first) => Some(Ok(first)),
                        None => ready!(Pin::new(&mut part.upstream).poll_next(cx)),
                    };
                    let group = &part.group;
                    match frame {
                        // Read to its end, because dropping it earlier would cancel a turn that is done.
                        Some(Ok(_)) if this.delivered.finished => None,
                        Some(Ok(frame)) => return this.deliver(frame),
                        Some(Err(error)) => {
                            let group = group.clone();
                            this.broke(group, Some(fault(&error)))
                        }
                        None => {
                            let group = group.clone();
                            this.broke(group, None)
                        }
                    }
                }
                Source::Lost(lost) => {
                    let next = ready!(lost.next.as_mut().poll(cx));
                    let lost = (lost.group.clone(), std::mem::take(&mut lost.reason));
                    this.reopened(lost, next)
                }
            };
            if let Some(error) = error {
                return this.end(&error);
            }
        }
    }
}

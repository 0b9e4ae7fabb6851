//! One HTTP/2 connection to a server that is called for every turn, in place of tonic's channel under tonic's client.
//!
//! In a channel a call passes a queue, the task behind it and a dispatcher before it comes to the connection, and each
//! of them may have to be woken. Here the call's own task opens the stream and puts the whole request into it, so that the
//! connection's task writes all of it at once; the answer is read by whoever polls it. Codecs and statuses stay tonic's.
//! docs/benchmarks.md says what that is worth, ADR 15 what it costs.
//!
//! Promises: connects with the first call, and anew with the first one after the connection has ended. Calls that come
//! while it connects wait for the same connection and share its failure, which is a [`tonic::ConnectError`]: nothing was
//! sent. No call is ever sent twice. Dropping a call, or the body of its answer, resets its stream. What nobody reads
//! stays with the server, by flow control. A peer that shows no sign of life loses the connection.
//!
//! Never limits a call's time: its caller does. Sends a request once all of it is there, so it is for methods whose client
//! sends one message.

mod answer;
mod connecting;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use hawser_common::tasks::Tasks;
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response, header};
use tonic::codegen::{Bytes, Service, StdError};
use tracing::debug;

pub use answer::Answer;
pub use connecting::{Io, Limits, NotConnected, Peer, Reach};

type Sender = h2::client::SendRequest<Bytes>;
type Connecting = Shared<oneshot::Receiver<Result<Sender, NotConnected>>>;

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("hawser/", env!("CARGO_PKG_VERSION")));

/// See the head of this file. Clones share the connection, which ends once the last of them is gone and the last of its
/// streams has ended, or with the tasks that it was made with.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    peer: Arc<Peer>,
    tasks: Tasks,
    state: Mutex<State>,
}

enum State {
    Idle,
    Connecting(Connecting),
    /// It may have ended since.
    Up(Sender),
}

impl Link {
    /// Connects with its first call, in `tasks`.
    #[must_use]
    pub fn new(peer: Peer, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { peer: Arc::new(peer), tasks, state: Mutex::new(State::Idle) }))
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Answer>, StdError> {
        let (mut head, body) = request.into_parts();
        let message = body.collect().await?.to_bytes();
        head.uri = self.0.peer.at(head.uri)?;
        head.headers.insert(header::USER_AGENT, USER_AGENT);
        let mut sender = self.0.sender().await.map_err(unsent)?;
        let is_empty = message.is_empty();
        let opened = sender.send_request(Request::from_parts(head, ()), is_empty);
        let (answer, mut stream) = opened.map_err(unsent)?;
        if !is_empty {
            // All of it, whatever the window: it is in memory either way, and goes out as there is room.
            stream.send_data(message, true)?;
        }
        Ok(answer.await?.map(Answer::new))
    }
}

/// The failure of a call of which nothing was sent.
fn unsent(error: impl std::error::Error + Send + Sync + 'static) -> StdError {
    tonic::ConnectError(Box::new(error)).into()
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What opens a stream on a connection that stands, as far as this end knows.
    async fn sender(self: &Arc<Self>) -> Result<Sender, NotConnected> {
        let connecting = match &mut *self.state() {
            State::Connecting(connecting) => connecting.clone(),
            state => {
                if let State::Up(sender) = state {
                    let mut sender = sender.clone();
                    if is_open(&mut sender) {
                        return Ok(sender);
                    }
                }
                let connecting = self.connect();
                *state = State::Connecting(connecting.clone());
                connecting
            }
        };
        connecting.await.unwrap_or(Err(NotConnected::Stopping))
    }

    /// Begins to connect. The task knows this only weakly, so that it does not keep its own connection.
    fn connect(self: &Arc<Self>) -> Connecting {
        let (tell, told) = oneshot::channel();
        let (peer, inner) = (Arc::clone(&self.peer), Arc::downgrade(self));
        let (uri, stopping) = (peer.uri().clone(), self.tasks.stopping());
        let run = async move {
            let connected = peer.connect().await;
            let (result, connection) = match connected {
                Ok((sender, connection)) => (Ok(sender), Some(connection)),
                Err(error) => (Err(error), None),
            };
            if let Some(inner) = inner.upgrade() {
                let next = result.clone().map_or(State::Idle, State::Up);
                *inner.state() = next;
            }
            // All who asked may have gone.
            let _ = tell.send(result);
            if let Some(connection) = connection {
                connection.carry().await;
            }
        };
        self.tasks.spawn(async move {
            // Both branches are cancel-safe: what ends here is the connection.
            tokio::select! {
                () = run => {}
                () = stopping.cancelled() => debug!(%uri, "a connection ends with its tasks"),
            }
        });
        told.shared()
    }
}

/// Whether a stream can be opened: the other end has not said goodbye, and the connection has not broken. Never pending:
/// that is a handle with a stream that waits to be opened.
fn is_open(sender: &mut Sender) -> bool {
    matches!(sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}

impl Service<Request<Body>> for Link {
    type Response = Response<Answer>;
    type Error = StdError;
    type Future = BoxFuture<'static, Result<Self::Response, StdError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(self.0.peer.uri()).finish()
    }
}

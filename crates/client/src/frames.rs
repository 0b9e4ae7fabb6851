//! The frames of one turn, checked against the protocol: `Placed`, chunks, `Finished`, end.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use hawser_proto::v1::GenerateResponse;
pub use hawser_proto::v1::generate_response::Frame;
use tokio::time::Sleep;
use tonic::{Response, Status, Streaming};

use crate::error::ClientError;

/// One running turn. Dropping it cancels the turn.
#[derive(Debug)]
pub struct FrameStream {
    frames: Streaming<GenerateResponse>,
    expect: Expect,
    tokens: u64,
    deadline: Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Placed,
    Tokens,
    Nothing,
}

type Opened = Result<Response<Streaming<GenerateResponse>>, Status>;

impl FrameStream {
    pub(crate) async fn open(
        limit: Option<Duration>,
        rpc: impl Future<Output = Opened>,
    ) -> Result<Self, ClientError> {
        let mut deadline = Deadline::new(limit);
        let answer = deadline.bound(rpc).await?;
        let frames = answer.map_err(|status| ClientError::refused(&status))?.into_inner();
        Ok(Self { frames, expect: Expect::Placed, tokens: 0, deadline })
    }

    /// The next frame; `None` after `Finished`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] before the first frame, [`ClientError::Interrupted`] or [`ClientError::Truncated`]
    /// after it, [`ClientError::Protocol`] for frames out of order. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Option<Frame>, ClientError> {
        if self.expect == Expect::Nothing {
            return Ok(None);
        }
        let received = self.deadline.bound(self.frames.message()).await;
        let step = received.and_then(|message| self.accept(message));
        if step.is_err() {
            self.expect = Expect::Nothing;
        }
        step.map(Some)
    }

    fn accept(&mut self, message: Result<Option<GenerateResponse>, Status>) -> Result<Frame, ClientError> {
        let tokens = self.tokens;
        let message = message.map_err(|status| match self.expect {
            Expect::Placed => ClientError::refused(&status),
            _ => ClientError::Interrupted { fault: hawser_proto::fault(&status), tokens },
        })?;
        let frame = message.ok_or(ClientError::Truncated { tokens })?.frame;
        match (self.expect, frame) {
            (Expect::Placed, Some(Frame::Placed(placed))) => {
                self.expect = Expect::Tokens;
                Ok(Frame::Placed(placed))
            }
            (Expect::Tokens, Some(Frame::Chunk(chunk))) => {
                self.tokens += chunk.token_ids.len() as u64;
                Ok(Frame::Chunk(chunk))
            }
            (Expect::Tokens, Some(Frame::Finished(finished))) => {
                self.expect = Expect::Nothing;
                Ok(Frame::Finished(finished))
            }
            (_, None) => Err(ClientError::Protocol { what: "an empty frame" }),
            (_, Some(_)) => Err(ClientError::Protocol { what: "a frame out of order" }),
        }
    }
}

/// A moment after which nothing is waited for.
#[derive(Debug)]
struct Deadline(Option<(Duration, Pin<Box<Sleep>>)>);

impl Deadline {
    fn new(limit: Option<Duration>) -> Self {
        Self(limit.map(|limit| (limit, Box::pin(tokio::time::sleep(limit)))))
    }

    /// Both branches may be dropped half-way: an unfinished call or receive is given up with the whole stream.
    async fn bound<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, ClientError> {
        let Some((limit, passed)) = &mut self.0 else {
            return Ok(wait.await);
        };
        tokio::select! {
            biased;
            done = wait => Ok(done),
            () = passed => Err(ClientError::Deadline { limit: *limit }),
        }
    }
}

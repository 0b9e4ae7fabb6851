//! The frames of a running turn.

use futures_util::Stream;
use hawser_common::Coded as _;
use hawser_common::group::Owner;
use hawser_proto::{status, v1};
use tokio::sync::mpsc;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Status;
use v1::generate_response::Frame;

use super::frames::{finished, frame, push};
use super::turns::TurnGuard;
use crate::metrics::TurnWatch;
use crate::session::Prompt;
use crate::turn::{TokenPiece, TurnEnd, TurnError, TurnEvent};

/// Tokens that one frame carries at most; more only come together when the reader is slow.
const MAX_CHUNK_TOKENS: usize = 64;

pub(crate) struct TurnStreamParts {
    pub(crate) guard: TurnGuard,
    pub(crate) prompt: Prompt,
    /// Tokens of the answer that another group delivered.
    pub(crate) continued: usize,
    pub(crate) events: mpsc::Receiver<TurnEvent>,
    pub(crate) tracked: TaskTrackerToken,
}

/// A turn as its reader sees it. Dropping it drops the receiver, which aborts the turn, and checks the session in
/// uncommitted. Nothing of a session goes out once its claim may have ended: another group may own it by then.
pub(crate) struct TurnStream {
    /// Dropped before the guard: the turn is aborted when its session may run the next one.
    events: mpsc::Receiver<TurnEvent>,
    guard: TurnGuard,
    prompt: Option<Prompt>,
    continued: usize,
    /// Taken from the channel behind tokens that went out first.
    next: Option<TurnEvent>,
    state: State,
    /// `None`: nobody looks.
    watch: Option<TurnWatch>,
    _tracked: TaskTrackerToken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    Ended,
}

impl TurnStream {
    pub(crate) fn new(parts: TurnStreamParts) -> Self {
        let TurnStreamParts { guard, prompt, continued, events, tracked } = parts;
        let (next, state, watch) = (None, State::Opening, None);
        Self { guard, prompt: Some(prompt), continued, events, next, state, watch, _tracked: tracked }
    }

    pub(crate) fn watched_by(self, watch: TurnWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// The session's handle, for the initial metadata.
    pub(crate) fn session(&self) -> Option<&str> {
        self.guard.held.as_ref().map(|held| held.key().session.as_str())
    }

    /// The frames, ending with `Finished` or an error.
    pub(crate) fn into_frames(self) -> impl Stream<Item = Result<v1::GenerateResponse, Status>> + Send {
        futures_util::stream::unfold(self, |mut turn| async move {
            let item = turn.next_frame().await?;
            Some((item.map(frame).map_err(|error| status(&error)), turn))
        })
    }

    async fn next_frame(&mut self) -> Option<Result<Frame, TurnError>> {
        match self.state {
            State::Opening => {
                self.state = State::Running;
                Some(Ok(Frame::Placed(self.placed())))
            }
            State::Running => {
                let event = match self.next.take() {
                    Some(event) => Some(event),
                    None => self.events.recv().await,
                };
                if self.guard.is_fenced() {
                    self.state = State::Ended;
                    return Some(Err(TurnError::Fenced));
                }
                Some(self.on_event(event))
            }
            State::Ended => None,
        }
    }

    fn placed(&self) -> v1::Placed {
        let shared = &self.guard.shared;
        let Owner { group, epoch } = shared.owner();
        v1::Placed {
            session: self.session().unwrap_or_default().to_owned(),
            group: group.to_string(),
            epoch: epoch.0,
            model: shared.model.clone(),
            continued_tokens: u32::try_from(self.continued).unwrap_or(u32::MAX),
        }
    }

    fn on_event(&mut self, event: Option<TurnEvent>) -> Result<Frame, TurnError> {
        match event {
            Some(TurnEvent::Token(piece)) => Ok(Frame::Chunk(self.chunk(piece))),
            Some(TurnEvent::Text(text)) => Ok(Frame::Chunk(v1::Chunk { text, ..Default::default() })),
            Some(TurnEvent::Finished(end)) => {
                self.state = State::Ended;
                if let Some(watch) = &mut self.watch {
                    watch.finished(&end);
                }
                self.guard.shared.moves.balance.turn_ended(&end);
                Ok(Frame::Finished(self.commit(&end)))
            }
            Some(TurnEvent::Failed(error)) => Err(self.failed(error)),
            None => Err(self.failed(TurnError::DriverStopped)),
        }
    }

    fn failed(&mut self, error: TurnError) -> TurnError {
        self.state = State::Ended;
        if let Some(watch) = &mut self.watch {
            watch.failed(error.code(), &error);
        }
        error
    }

    /// The piece with whatever tokens are there already: a fast reader gets each at once, a slow one several together.
    fn chunk(&mut self, first: TokenPiece) -> v1::Chunk {
        let mut chunk = v1::Chunk::default();
        push(&mut chunk, first);
        while chunk.token_ids.len() < MAX_CHUNK_TOKENS {
            match self.events.try_recv() {
                Ok(TurnEvent::Token(piece)) => push(&mut chunk, piece),
                Ok(other) => {
                    self.next = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        chunk
    }

    fn commit(&mut self, end: &TurnEnd) -> v1::Finished {
        let turn = match (&mut self.guard.held, self.prompt.take()) {
            (Some(held), Some(prompt)) => {
                held.commit(prompt, &end.tokens, &end.text);
                held.turns
            }
            _ => 0,
        };
        // The next turn may start as soon as this frame is read.
        self.guard.check_in();
        finished(end, turn)
    }
}

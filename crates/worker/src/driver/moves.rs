//! Sessions that leave a driver or arrive at it, as the tasks that move them hold them.
//!
//! A [`Departure`] keeps its session's rows in place, an [`Arrival`] holds slots for a session that is nobody's yet.
//! Promises that dropping either, at any point, gives back what it holds: the driver looks whether they are still there
//! before every step, and is woken where it would sleep. Rows pass in pieces, each between two steps, so that a large
//! session does not hold the others up.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hawser_common::{Coded, ErrorCode, SessionKey};
use hawser_model::executor::MemoryState;
use thiserror::Error;
use tokio::sync::oneshot;

use super::command::{Command, DriverHandle};
use crate::scheduler::{ArrivalId, ArrivalRefused, SessionState};
use crate::turn::TurnError;

/// Between two tries to hand a command to a driver whose queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// Why a session cannot leave or arrive.
#[derive(Debug, Error)]
pub enum MoveError {
    #[error(transparent)]
    Refused(#[from] ArrivalRefused),
    #[error("the query memory has other sizes than this model's")]
    Memory,
    #[error("{found} bytes of rows came; a row has {row_bytes}")]
    Rows { found: usize, row_bytes: usize },
    #[error("the session is not among those that move: its group failed meanwhile")]
    Gone,
    #[error(transparent)]
    Driver(#[from] TurnError),
}

impl Coded for MoveError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(error) => error.code(),
            Self::Memory | Self::Rows { .. } => ErrorCode::Invalid,
            Self::Gone => ErrorCode::Unavailable,
            Self::Driver(error) => error.code(),
        }
    }
}

/// What leaves, beside its rows.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) state: SessionState,
    pub(super) memory: Option<MemoryState>,
    pub(super) row_bytes: usize,
}

/// What arrives, beside its rows.
#[derive(Debug)]
pub struct Arriving {
    pub key: SessionKey,
    pub state: SessionState,
    pub memory: Option<MemoryState>,
    /// How long ago it was used last.
    pub idle: Duration,
    /// Number of token ids of the model.
    pub vocabulary: usize,
}

type Answer<T> = oneshot::Sender<Result<T, MoveError>>;

/// What is asked of a driver for a session that moves.
#[derive(Debug)]
pub enum MoveCommand {
    Leave(SessionKey, Weak<()>, Answer<Option<Box<LeftParts>>>),
    Read(SessionKey, Range<usize>, Answer<Vec<u8>>),
    Arrive(Box<Arriving>, Weak<()>, Answer<(ArrivalId, usize)>),
    /// Rows from the first on.
    Write(ArrivalId, usize, Vec<u8>, Answer<()>),
    Commit(ArrivalId, SessionKey, Answer<()>),
    /// Somebody let go of a departure or an arrival.
    Sweep,
}

/// Opaque to all but the driver.
#[derive(Debug)]
pub struct LeftParts(pub(super) Left);

/// An idle session that is read in order to leave. Dropping it lets the session stay.
#[derive(Debug)]
pub struct Departure {
    driver: DriverHandle,
    key: SessionKey,
    alive: Option<Arc<()>>,
    pub state: SessionState,
    pub memory: Option<MemoryState>,
    /// Bytes of one row as it travels.
    pub row_bytes: usize,
}

impl Departure {
    /// Rows of some of the state's live positions.
    ///
    /// # Errors
    /// [`MoveError`]: the group failed, or its driver stopped.
    pub async fn read(&self, rows: Range<usize>) -> Result<Vec<u8>, MoveError> {
        self.driver.ask(|done| MoveCommand::Read(self.key.clone(), rows, done)).await
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.alive = None;
        self.driver.wake();
    }
}

/// A session that is not here yet. Dropping it gives its slots back.
#[derive(Debug)]
pub struct Arrival {
    driver: DriverHandle,
    id: ArrivalId,
    alive: Option<Arc<()>>,
    /// Bytes of one row as it travels.
    pub row_bytes: usize,
}

impl Arrival {
    /// Stores rows from `first` on.
    ///
    /// # Errors
    /// [`MoveError`]: there are no such rows, or the group failed.
    pub async fn write(&self, first: usize, bytes: Vec<u8>) -> Result<(), MoveError> {
        self.driver.ask(|done| MoveCommand::Write(self.id, first, bytes, done)).await
    }

    /// Makes it the session of this name.
    ///
    /// # Errors
    /// As [`Arrival::write`].
    pub async fn commit(self, key: SessionKey) -> Result<(), MoveError> {
        self.driver.ask(|done| MoveCommand::Commit(self.id, key, done)).await
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.alive = None;
        self.driver.wake();
    }
}

impl DriverHandle {
    /// Pins an idle session in order to read it; `None` where the driver has nothing of it.
    ///
    /// # Errors
    /// [`MoveError`]: the group is down, or its driver stopped.
    pub async fn depart(&self, key: SessionKey) -> Result<Option<Departure>, MoveError> {
        let alive = Arc::new(());
        let weak = Arc::downgrade(&alive);
        let left = self.ask(|done| MoveCommand::Leave(key.clone(), weak, done)).await?;
        Ok(left.map(|left| {
            let Left { state, memory, row_bytes } = left.0;
            Departure { driver: self.clone(), key, alive: Some(alive), state, memory, row_bytes }
        }))
    }

    /// Makes room for a session from elsewhere.
    ///
    /// # Errors
    /// [`MoveError`]: it does not fit, or is not sound. Nothing is held then.
    pub async fn arrive(&self, arriving: Arriving) -> Result<Arrival, MoveError> {
        let alive = Arc::new(());
        let weak = Arc::downgrade(&alive);
        let (id, row_bytes) = self.ask(|done| MoveCommand::Arrive(Box::new(arriving), weak, done)).await?;
        Ok(Arrival { driver: self.clone(), id, alive: Some(alive), row_bytes })
    }

    /// Waits where the queue is full: a move is in no hurry, and has its own limit.
    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> MoveCommand) -> Result<T, MoveError> {
        let (done, answer) = oneshot::channel();
        let mut command = Command::Move(Box::new(command(done)));
        while let Some(refused) = self.offer(command)? {
            command = refused;
            tokio::time::sleep(RETRY).await;
        }
        answer.await.map_err(|_| TurnError::DriverStopped)?
    }

    /// A driver whose queue is full is not asleep.
    fn wake(&self) {
        let _ = self.offer(Command::Move(Box::new(MoveCommand::Sweep)));
    }
}

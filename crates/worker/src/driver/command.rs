//! What can be asked of the driver, and the handle that asks.

use std::sync::mpsc::{SyncSender, TrySendError};

use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_common::group::Capacity;
use hawser_common::telemetry::TraceParent;
use tokio::sync::{mpsc, oneshot, watch};

use super::moves::MoveCommand;
use crate::ranks::GroupReport;
use crate::scheduler::{Inspection, Limits, Submission, Weight};
use crate::turn::{Generation, TurnError, TurnEvent};

/// Bounds of a driver.
#[derive(Debug, Clone, Copy)]
pub struct DriverOptions {
    pub limits: Limits,
    /// Slots of the pool, the dead slot included.
    pub slots: usize,
    /// Slots behind the pool, for copies of evicted rows.
    pub archive_slots: usize,
    /// Commands that wait for the next step; one more is refused.
    pub queue: usize,
}

/// A turn ready to run.
#[derive(Debug)]
pub struct Turn {
    pub submission: Submission,
    pub generation: Generation,
    /// Room for at least [`Turn::MIN_ROOM`] events. Dropping the receiver aborts the turn.
    pub events: mpsc::Sender<TurnEvent>,
    /// When the request came to the leader: its wait begins there.
    pub arrived: Tick,
    /// What spans of ranks hang under.
    pub trace: TraceParent,
}

impl Turn {
    /// A step may add a token and the terminal event; one more place keeps a failure from being lost.
    pub const MIN_ROOM: usize = 3;
}

/// A command. Answers come over its own channel; a dropped answer channel is nobody's problem.
#[derive(Debug)]
pub enum Command {
    Run(Box<Turn>),
    Fork {
        from: SessionKey,
        to: SessionKey,
        done: oneshot::Sender<()>,
    },
    /// Ends what runs for the session, and answers with the slots that became free.
    Close {
        key: SessionKey,
        done: oneshot::Sender<usize>,
    },
    /// Answers with each session's live rows.
    Live {
        keys: Vec<SessionKey>,
        done: oneshot::Sender<Vec<usize>>,
    },
    /// Answers with what the group has left, and what each idle session has and needs.
    Weigh {
        done: oneshot::Sender<Weights>,
    },
    /// Answers with what became of the session's rows; `None` where it has none.
    Inspect {
        key: SessionKey,
        done: oneshot::Sender<Option<Inspection>>,
    },
    /// A session leaves or arrives.
    Move(Box<MoveCommand>),
}

/// What idle sessions have, at one time with what is left.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    pub capacity: Capacity,
    pub sessions: Vec<Weight>,
}

/// Talks to the driver. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DriverHandle {
    commands: SyncSender<Command>,
    capacity: watch::Receiver<Capacity>,
    is_up: watch::Receiver<bool>,
    report: watch::Receiver<GroupReport>,
}

impl DriverHandle {
    pub(super) fn new(
        commands: SyncSender<Command>,
        capacity: watch::Receiver<Capacity>,
        (is_up, report): (watch::Receiver<bool>, watch::Receiver<GroupReport>),
    ) -> Self {
        Self { commands, capacity, is_up, report }
    }

    /// What the group has left, as of a few steps ago at most; changes can be awaited.
    #[must_use]
    pub fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.clone()
    }

    /// Whether the group's ranks are there; changes can be awaited.
    #[must_use]
    pub fn is_up(&self) -> watch::Receiver<bool> {
        self.is_up.clone()
    }

    /// The group's ranks, as of the last step.
    #[must_use]
    pub fn report(&self) -> watch::Receiver<GroupReport> {
        self.report.clone()
    }

    /// Hands a command over, or gives it back where the queue is full.
    pub(super) fn offer(&self, command: Command) -> Result<Option<Command>, TurnError> {
        match self.commands.try_send(command) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(command)) => Ok(Some(command)),
            Err(TrySendError::Disconnected(_)) => Err(TurnError::DriverStopped),
        }
    }

    fn send(&self, command: Command) -> Result<(), TurnError> {
        self.commands.try_send(command).map_err(|refused| match refused {
            TrySendError::Full(_) => TurnError::DriverBusy,
            TrySendError::Disconnected(_) => TurnError::DriverStopped,
        })
    }

    /// Hands over a turn; refusals by the scheduler come as its terminal event.
    ///
    /// # Errors
    /// [`TurnError::DriverBusy`] if the queue is full, [`TurnError::DriverStopped`] if the thread is gone.
    pub fn run(&self, turn: Turn) -> Result<(), TurnError> {
        debug_assert!(turn.events.max_capacity() >= Turn::MIN_ROOM, "the terminal event always has room");
        self.send(Command::Run(Box::new(turn)))
    }

    /// Gives session `to` the rows of `from`.
    ///
    /// # Errors
    /// As [`DriverHandle::run`].
    pub async fn fork(&self, from: SessionKey, to: SessionKey) -> Result<(), TurnError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Fork { from, to, done })?;
        answer.await.map_err(|_| TurnError::DriverStopped)
    }

    /// Forgets a session, together with what runs for it, and says how many slots became free.
    ///
    /// # Errors
    /// As [`DriverHandle::run`].
    pub async fn close(&self, key: SessionKey) -> Result<usize, TurnError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Close { key, done })?;
        answer.await.map_err(|_| TurnError::DriverStopped)
    }

    /// How many positions of each session have a slot.
    ///
    /// # Errors
    /// As [`DriverHandle::run`].
    pub async fn live(&self, keys: Vec<SessionKey>) -> Result<Vec<usize>, TurnError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Live { keys, done })?;
        answer.await.map_err(|_| TurnError::DriverStopped)
    }

    /// What idle sessions have and need, and what is left.
    ///
    /// # Errors
    /// As [`DriverHandle::run`].
    pub async fn weigh(&self) -> Result<Weights, TurnError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Weigh { done })?;
        answer.await.map_err(|_| TurnError::DriverStopped)
    }

    /// What became of the session's rows; `None` where it has none.
    ///
    /// # Errors
    /// As [`DriverHandle::run`].
    pub async fn inspect(&self, key: SessionKey) -> Result<Option<Inspection>, TurnError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Inspect { key, done })?;
        answer.await.map_err(|_| TurnError::DriverStopped)
    }
}

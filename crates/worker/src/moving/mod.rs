//! Moving sessions between worker groups of the same model: one group drains, another goes on.
//!
//! The group that has a session offers it to another, which stages all of it before anyone lets go of anything; then the
//! one releases its claim in the store, the other claims it, and only whoever has won the claim serves (docs/moving.md).
//! Promises that a session has no two owners at any time, that a turn which comes meanwhile waits and is told the new
//! owner, that what is refused or fails before the release stays where it was, and that what fails after it is nobody's
//! but the claim's winner's. Never moves a session in the middle of a turn.

mod moved;
mod peers;
mod receiver;
mod sender;
pub mod snapshot;
mod wire;

use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::group::Owner;
use tokio::sync::Semaphore;

pub(crate) use peers::Peers;
pub(crate) use receiver::HandoverService;
pub(crate) use sender::{hand_over, hand_over_all};

use moved::Moved;
use snapshot::Shape;

use crate::options::WorkerOptions;

/// What moving needs, and what it knows.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) enabled: bool,
    /// Longest time of one move.
    pub(crate) limit: Duration,
    /// Sessions that may leave at once.
    pub(crate) most: usize,
    leaving: Semaphore,
    arriving: Semaphore,
    pub(crate) shape: Shape,
    pub(crate) peers: Peers,
    moved: Moved,
}

impl Moves {
    pub(crate) fn new(options: &WorkerOptions, shape: Shape, peers: Peers) -> Self {
        Self {
            enabled: options.move_sessions,
            limit: Duration::from_millis(options.move_timeout_ms),
            most: options.max_moves,
            leaving: Semaphore::new(options.max_moves),
            arriving: Semaphore::new(options.max_moves),
            shape,
            peers,
            moved: Moved::new(options.max_sessions),
        }
    }

    /// Who has a session that was here before.
    pub(crate) fn moved(&self, key: &SessionKey) -> Option<Owner> {
        self.moved.owner(key)
    }
}

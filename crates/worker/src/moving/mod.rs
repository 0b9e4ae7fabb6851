//! Moving sessions between worker groups of the same model: one group drains, or carries more than another, which goes on.
//!
//! The group that has a session offers it to another, which stages all of it before anyone lets go of anything; then the
//! one releases its claim in the store, the other claims it, and only whoever has won the claim serves (docs/moving.md).
//! Promises that a session has no two owners at any time, that a turn which comes meanwhile waits and is told the new
//! owner, that what is refused or fails before the release stays where it was, and that what fails after it is nobody's
//! but the claim's winner's. Never moves a session in the middle of a turn.

mod balance;
mod moved;
mod options;
mod pace;
mod peers;
pub mod rebalance;
mod receiver;
mod sender;
pub mod snapshot;
mod wire;

use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::group::Owner;
use hawser_proto::transport::Dial;
use tokio::sync::Semaphore;

pub(crate) use balance::keep_balance;
pub use options::BalanceOptions;
pub(crate) use peers::Peers;
pub(crate) use receiver::HandoverService;
pub(crate) use sender::{hand_over, hand_over_all};

use balance::Balance;
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
    /// How other groups are connected to.
    dial: Dial,
    pub(crate) balance: Balance,
    moved: Moved,
}

impl Moves {
    pub(crate) fn new(options: &WorkerOptions, shape: Shape, peers: Peers, dial: Dial) -> Self {
        let balance = Balance::new(&options.rebalance, options.max_running, shape.row_bytes());
        Self {
            enabled: options.move_sessions,
            limit: Duration::from_millis(options.move_timeout_ms),
            most: options.max_moves,
            leaving: Semaphore::new(options.max_moves),
            arriving: Semaphore::new(options.max_moves),
            shape,
            peers,
            dial,
            balance,
            moved: Moved::new(options.max_sessions),
        }
    }

    /// Who has a session that was here before.
    pub(crate) fn moved(&self, key: &SessionKey) -> Option<Owner> {
        self.moved.owner(key)
    }

    /// The session is here, or nobody's: whoever had it since does not any more.
    pub(crate) fn forget(&self, key: &SessionKey) {
        self.moved.remove(key);
    }
}

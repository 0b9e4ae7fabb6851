//! How the ranks of a group come together: once per epoch, again after each failure.

use std::net::SocketAddr;

use hawser_common::{Coded, ErrorCode};
use hawser_device::DeviceError;
use hawser_device::collective::nccl::UniqueIdError;
use hawser_device::collective::{CollectiveError, ConnectionError};
use thiserror::Error;

use super::leader::Leader;

/// Why a group did not come together.
#[derive(Debug, Error)]
pub enum FormError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot start rank {rank}: {source}")]
    Start { rank: usize, source: std::io::Error },
    #[error("of {world} ranks these have not joined yet: {ranks:?}")]
    Missing { ranks: Vec<usize>, world: usize },
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Id(#[from] UniqueIdError),
    #[error("ranks cannot be heard: {0}")]
    Rendezvous(#[from] std::io::Error),
    #[error("a rank that had come cannot be talked to: {0}")]
    Connection(#[from] ConnectionError),
}

impl Coded for FormError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Device(error) => error.code(),
            Self::Collective(error) => error.code(),
            Self::Id(error) => error.code(),
            Self::Start { .. } | Self::Missing { .. } | Self::Rendezvous(_) | Self::Connection(_) => {
                ErrorCode::Unavailable
            }
        }
    }
}

/// Brings ranks together. Called from the driver's thread: it may block for about a second, and for longer only where
/// all ranks are there and join NCCL's group.
pub trait Formation: Send + std::fmt::Debug {
    /// Ranks of the group.
    fn world(&self) -> usize;

    /// The leader of a new epoch, with ranks that hold nothing yet.
    ///
    /// # Errors
    /// [`FormError`]; it is tried again later.
    fn form(&mut self, epoch: u64) -> Result<Leader, FormError>;

    /// Where ranks in other processes come to; `None`: there are none.
    fn meeting(&self) -> Option<SocketAddr> {
        None
    }

    /// Tells processes that want to be a rank of a group which is whole that it is. Called between steps, and never waits.
    fn turn_away(&mut self) {}
}

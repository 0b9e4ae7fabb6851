//! How the ranks of a group come together: once per epoch, again after each failure.

use hawser_common::{Coded, ErrorCode};
use hawser_device::DeviceError;
use thiserror::Error;

use super::leader::Leader;

/// Why a group did not come together.
#[derive(Debug, Error)]
pub enum FormError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot start rank {rank}: {source}")]
    Start { rank: usize, source: std::io::Error },
    #[error("{missing} of {world} ranks have not joined yet")]
    Missing { missing: usize, world: usize },
    #[error("ranks cannot be heard: {0}")]
    Rendezvous(#[from] std::io::Error),
}

impl Coded for FormError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Device(error) => error.code(),
            Self::Start { .. } | Self::Missing { .. } | Self::Rendezvous(_) => ErrorCode::Unavailable,
        }
    }
}

/// Brings ranks together. Called from the driver's thread: it may block for about a second, not for longer.
pub trait Formation: Send + std::fmt::Debug {
    /// The leader of a new epoch, with ranks that hold nothing yet.
    ///
    /// # Errors
    /// [`FormError`]; it is tried again later.
    fn form(&mut self, epoch: u64) -> Result<Leader, FormError>;
}

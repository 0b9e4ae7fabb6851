//! Groups over NCCL, for ranks that have a GPU each.
//!
//! Three layers: `cuda` has the libraries' functions and turns their codes into errors; `communicator` owns a
//! communicator over device memory; `group` brings host rows there and back. Promises that a build needs no CUDA and
//! a machine without it gets an error that names the missing library, and that every wait ends.
//!
//! What NCCL does not promise, this transport does not either. Floats are added in an order of NCCL's choice, not in
//! the order of the ranks; that all ranks get equal bits follows from its algorithms, not from its documentation. A
//! silent rank is not named. The reason of an abort stays on its rank; the others see an error of NCCL's or their
//! timeout. Tags are not sent, so ranks that call different things with equal lengths get a wrong sum, unless
//! [`TagCheck::On`] compares them first.

mod calls;
mod communicator;
#[cfg(feature = "cuda")]
mod cuda;
mod group;
mod plan;
mod staging;
mod unique_id;
mod version;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use super::CollectiveError;
use calls::Calls;

pub use group::Nccl;
pub use unique_id::{UniqueId, UniqueIdError};
pub use version::Version;

const TRANSPORT: &str = "NCCL";

/// Which rank this is, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From 0; rank 0 is the leader.
    pub rank: usize,
    pub world: usize,
}

/// Whether ranks compare what they call before each call. All ranks of a group must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagCheck {
    Off,
    /// Costs one more small gather per call.
    On,
}

impl Default for TagCheck {
    /// On in builds with debug assertions.
    fn default() -> Self {
        if cfg!(debug_assertions) { Self::On } else { Self::Off }
    }
}

/// How a rank takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclOptions {
    /// Number of the device, among those that CUDA shows to this process.
    pub device: usize,
    /// How long to wait for all ranks to join.
    pub join_timeout: Duration,
    /// How long a call may take.
    pub timeout: Duration,
    pub tags: TagCheck,
}

/// The library's version.
///
/// # Errors
/// [`CollectiveError::Transport`] if the library cannot be loaded.
pub fn version() -> Result<Version, CollectiveError> {
    Ok(load()?.version()?)
}

/// Draws the name of a new group. For the leader, which sends it to the other ranks; one id makes one group.
///
/// # Errors
/// [`CollectiveError::Transport`] if the library cannot be loaded, or finds no network to wait on.
pub fn unique_id() -> Result<UniqueId, CollectiveError> {
    Ok(load()?.unique_id()?)
}

#[cfg(feature = "cuda")]
fn load() -> Result<Arc<dyn Calls>, CollectiveError> {
    Ok(cuda::load()?)
}

#[cfg(not(feature = "cuda"))]
fn load() -> Result<Arc<dyn Calls>, CollectiveError> {
    let reason = "this build has no CUDA: build it with the feature `cuda`".to_owned();
    Err(CollectiveError::Transport { transport: TRANSPORT, reason })
}

//! Over what the ranks of a group of processes add up: the connection that they opened for it, or NCCL.
//!
//! The leader chooses and draws the id of NCCL's group, which travels with the terms. Promises that a build or a machine
//! without NCCL is an error that says what is missing.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_device::collective::nccl::{self, Member, Nccl, NcclOptions, TagCheck, UniqueId};
use hawser_device::collective::{Collective, CollectiveError, Connection, TcpRank};

use super::formation::FormError;

/// Longest that ranks wait for each other to join NCCL's group, which takes seconds on some machines.
const JOINING: Duration = Duration::from_secs(30);

/// Over what ranks add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    Tcp,
    Nccl {
        /// Number of this process's GPU.
        gpu: usize,
    },
}

impl Sums {
    /// Whether this process can do it. Called once, before anything is loaded.
    ///
    /// # Errors
    /// [`CollectiveError`] says what is missing.
    pub fn probe(self) -> Result<(), CollectiveError> {
        match self {
            Self::Tcp => Ok(()),
            Self::Nccl { .. } => nccl::version().map(|version| tracing::info!(%version, "NCCL is here")),
        }
    }

    /// What the terms of a new group say of it.
    pub(super) fn draw(self) -> Result<Option<Vec<u8>>, CollectiveError> {
        match self {
            Self::Tcp => Ok(None),
            Self::Nccl { .. } => Ok(Some(nccl::unique_id()?.as_bytes().to_vec())),
        }
    }

    fn gpu(self) -> usize {
        match self {
            Self::Tcp => 0,
            Self::Nccl { gpu } => gpu,
        }
    }
}

/// The leader's end.
pub(super) fn lead(
    sums: Sums,
    id: Option<&[u8]>,
    connections: Vec<Connection>,
    timeout: Duration,
) -> Result<Box<dyn Collective>, FormError> {
    let world = connections.len() + 1;
    match id {
        None => Ok(Box::new(TcpRank::hub(connections, timeout)?)),
        Some(id) => join(id, Member { rank: 0, world }, sums.gpu(), timeout),
    }
}

/// Another rank's end, on its GPU where the leader chose NCCL.
pub(super) fn follow(
    gpu: usize,
    id: Option<&[u8]>,
    member: Member,
    connection: Connection,
    timeout: Duration,
) -> Result<Box<dyn Collective>, FormError> {
    match id {
        None => Ok(Box::new(TcpRank::spoke(member.rank, member.world, connection, timeout)?)),
        Some(id) => join(id, member, gpu, timeout),
    }
}

fn join(id: &[u8], member: Member, gpu: usize, timeout: Duration) -> Result<Box<dyn Collective>, FormError> {
    let id = UniqueId::try_from(id)?;
    let options = NcclOptions { device: gpu, join_timeout: JOINING, timeout, tags: TagCheck::default() };
    Ok(Box::new(Nccl::join(&id, member, options, Clock::system())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_nccl_says_what_is_missing() {
        assert_eq!(Sums::Tcp.probe(), Ok(()));
        assert_eq!(Sums::Tcp.draw(), Ok(None));
        // With the feature, and on a machine that has everything, there is nothing to see here.
        if let Err(error) = (Sums::Nccl { gpu: 0 }).probe() {
            assert!(matches!(error, CollectiveError::Transport { transport: "NCCL", .. }), "{error:?}");
            assert!(cfg!(feature = "cuda") || error.to_string().contains("feature `cuda`"), "{error}");
        }
    }

    #[test]
    fn an_id_of_another_length_is_refused() {
        let member = Member { rank: 1, world: 2 };
        let refused = join(&[1, 2, 3], member, 0, Duration::from_secs(1)).unwrap_err();
        assert!(matches!(refused, FormError::Id(_)), "{refused:?}");
    }
}

//! Where ranks in other processes meet: the leader listens, followers come with what they are and get what they need.
//!
//! Each follower opens two connections: one for commands, one for sums. Promises that ranks of another model, another
//! build or another count are refused with a reason, that no stranger keeps the leader waiting, and that a follower
//! learns epoch and sizes from the leader. Messages have a bounded length.

use std::io;
use std::time::Duration;

use hawser_device::collective::{Connection, ConnectionError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::link::Channel;

/// Longest greeting.
const MAX_BYTES: usize = 4_096;
/// Longest that a follower waits for the leader to say anything.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// Changes with the messages between ranks; the build says the rest.
const PROTOCOL: &str = concat!("hawser-ranks/4 ", env!("CARGO_PKG_VERSION"));

/// A follower's greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    protocol: String,
    /// Of the checkpoint.
    pub(super) model: String,
    pub(super) rank: usize,
    pub(super) world: usize,
    /// The same on both connections of one attempt.
    pub(super) attempt: u64,
    pub(super) channel: Channel,
}

impl Hello {
    pub(super) fn new(model: &str, (rank, world): (usize, usize), attempt: u64, channel: Channel) -> Self {
        Self { protocol: PROTOCOL.to_owned(), model: model.to_owned(), rank, world, attempt, channel }
    }

    /// Why the leader of `world` ranks of `model` does not take it; `None`: it does.
    pub(super) fn refused(&self, model: &str, world: usize) -> Option<String> {
        if self.protocol != PROTOCOL {
            return Some(format!("it speaks {:?}, the leader {PROTOCOL:?}", self.protocol));
        }
        if self.model != model {
            return Some(format!("it has the model {}, the leader {model}", self.model));
        }
        if self.world != world || self.rank == 0 || self.rank >= world {
            return Some(format!("it is rank {} of {}, the group has {world}", self.rank, self.world));
        }
        None
    }
}

/// A follower's answer to [`Welcome::Wait`]: it is there and waits, and nobody else gets its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Here;

/// The leader's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// Others are missing still. Said on the connection for commands at every look for them, so that a rank which waits
    /// knows that the leader is there; it answers [`Here`].
    Wait,
    /// All ranks are there.
    Start(Terms),
    Refused {
        reason: String,
    },
    /// Another process is this rank, as far as the leader knows.
    Taken {
        /// Where that one is.
        by: String,
    },
}

/// What a follower needs to know of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) epoch: u64,
    /// Slots of the KV rows, the archive's included.
    pub(super) slots: usize,
    /// 0: f32, 1: f16, 2: bf16.
    pub(super) row_type: u8,
    pub(super) timeout_ms: u64,
    /// Id of the group of NCCL in which ranks add up; `None`: they do so over the second connection.
    pub(super) nccl: Option<Vec<u8>>,
}

/// Sends a greeting, with its length in front, within `patience`.
pub(super) fn say(
    connection: &Connection,
    message: &impl Serialize,
    patience: Duration,
) -> Result<(), ConnectionError> {
    // In one piece, so that whoever takes it for something else has read all of it.
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    connection.send(&bytes, patience)
}

/// Waits for a greeting, no longer than `patience` for its length and as long again for the rest.
pub(super) fn hear<T: DeserializeOwned>(
    connection: &Connection,
    patience: Duration,
) -> Result<T, ConnectionError> {
    let mut length = [0; 4];
    connection.receive(&mut length, patience)?;
    let [first @ .., _] = length;
    if Connection::is_tls(first) {
        return Err(ConnectionError::TalksTls);
    }
    let length = u32::from_le_bytes(length) as usize;
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    if length > MAX_BYTES {
        return Err(invalid(format!("a greeting of {length} bytes")).into());
    }
    let mut bytes = vec![0; length];
    connection.receive(&mut bytes, patience)?;
    postcard::from_bytes(&bytes).map_err(|error| invalid(error.to_string()).into())
}

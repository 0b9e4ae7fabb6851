//! Where ranks in other processes meet: the leader listens, followers come with what they are and get what they need.
//!
//! Each follower opens two connections: one for commands, one for sums. Promises that ranks of another model, another
//! build or another count are refused with a reason, that no stranger keeps the leader waiting, and that a follower
//! learns epoch and sizes from the leader. Messages have a bounded length.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::link::Channel;

/// Longest greeting.
const MAX_BYTES: usize = 4_096;
/// Longest that a follower waits for the leader to say anything.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// Changes with the messages between ranks; the build says the rest.
const PROTOCOL: &str = concat!("hawser-ranks/3 ", env!("CARGO_PKG_VERSION"));

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

/// The leader's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// Others are missing still. Said on the connection for commands at every look for them, so that a rank which waits
    /// knows that the leader is there.
    Wait,
    /// All ranks are there.
    Start(Terms),
    Refused {
        reason: String,
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

/// Sends a greeting, with its length in front.
pub(super) fn say(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&bytes)
}

/// Waits for a greeting, for as long as the stream's read timeout.
pub(super) fn hear<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a greeting of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

//! What the leader tells the ranks, and how it travels: one message per step, with a checksum over what it says.

use std::sync::Arc;

use hawser_common::retention::Aggregation;
use hawser_common::{Position, SlotId};
use hawser_kv::retention::Evidence;
use hawser_model::executor::{MemoryId, MemoryState, Recursion, ScoreRequest};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::scheduler::{RankChange, StepPlan};

/// One message to every rank. Steps count from 1 in each epoch, without a gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    pub epoch: u64,
    pub step: u64,
    pub work: Work,
    /// After this command the ranks compare their tables.
    pub compares: bool,
}

/// What a rank does in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Run rows.
    Run(Arc<StepPlan>),
    /// Score the candidates of a prune or a revival, after these changes.
    Score(Vec<RankChange>, Scoring),
    /// Give the leader the rows of these slots: a session leaves the group.
    ReadRows(Vec<SlotId>),
    /// Store rows of a session that enters the group, as `ReadRows` gave them.
    WriteRows(Vec<SlotId>, Vec<u8>),
    /// Give the leader what is remembered of a session that leaves.
    ReadMemory(MemoryId),
    WriteMemory(MemoryId, Box<MemoryState>),
    /// Nothing: the leader is there, and wants to know that the others are.
    Beat,
    /// The group ends in good order.
    End,
}

/// What is scored for a prune or a revival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scoring {
    pub memory: MemoryId,
    pub evidence: Evidence,
    /// The span has not ended: score with the memory as if it did.
    pub peek: Option<Recursion>,
    /// Keys in position order; those of dead blocks stand first.
    pub keys: Vec<SlotId>,
    /// Indexes into `keys`.
    pub candidates: Vec<u32>,
    /// Of the candidates, where neighbours are averaged or mass is looked up.
    pub positions: Vec<Position>,
    pub keep: usize,
    pub pool: usize,
    pub causal: bool,
    pub aggregation: Aggregation,
}

impl Scoring {
    /// As the executor takes it.
    #[must_use]
    pub fn request(&self) -> ScoreRequest<'_> {
        ScoreRequest {
            memory: self.memory,
            evidence: self.evidence,
            peek: self.peek,
            live: &self.keys,
            candidates: &self.candidates,
            positions: &self.positions,
            aggregation: self.aggregation,
            keep: self.keep,
            pool: self.pool,
            causal: self.causal,
        }
    }
}

/// A message that is not what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    #[error("a plan is damaged: its checksum is {found:#018x} instead of {expected:#018x}")]
    Damaged { expected: u64, found: u64 },
    #[error("a plan cannot be read: {reason}")]
    Unreadable { reason: String },
}

impl Command {
    /// Bytes of the message and their checksum.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, u64) {
        let bytes = postcard::to_allocvec(self).expect("a plan is plain data");
        let checksum = xxh3_64(&bytes);
        (bytes, checksum)
    }

    /// # Errors
    /// [`CommandError`] for bytes that are not those that were encoded.
    pub fn decode(bytes: &[u8], expected: u64) -> Result<Self, CommandError> {
        let found = xxh3_64(bytes);
        if found != expected {
            return Err(CommandError::Damaged { expected, found });
        }
        postcard::from_bytes(bytes).map_err(|error| CommandError::Unreadable { reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command() -> Command {
        let plan = StepPlan {
            changes: vec![RankChange::Forget(MemoryId(7))],
            tokens: vec![1, 2, 3],
            positions: [4, 5, 6].map(Position).to_vec(),
            slots: [9, 8, 7].map(SlotId).to_vec(),
            ..StepPlan::default()
        };
        Command { epoch: 3, step: 41, work: Work::Run(Arc::new(plan)), compares: true }
    }

    proptest! {
        #[test]
        fn e9_a_flipped_bit_is_noticed(at in 0usize..1_000, bit in 0u8..8) {
            let (mut bytes, checksum) = command().encode();
            prop_assert_eq!(Command::decode(&bytes, checksum), Ok(command()));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let refused = matches!(Command::decode(&bytes, checksum), Err(CommandError::Damaged { .. }));
            prop_assert!(refused);
        }
    }
}

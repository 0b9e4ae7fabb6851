//! Why a model cannot be shared out among so many ranks.

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

/// Why a model cannot be shared out among so many ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShardError {
    #[error("{world} ranks for {heads} query heads: some would hold none; use at most {heads}")]
    Heads { world: usize, heads: usize },
    #[error(
        "tensor {tensor} is cut between blocks of {items} weights, into {parts} parts at most, and the group has {world} \
         ranks: use at most {parts}, or a checkpoint with smaller blocks"
    )]
    Uncut { tensor: String, parts: usize, items: usize, world: usize },
    #[error("{world} ranks for a vocabulary of {vocab} tokens: some would hold none; use at most {vocab}")]
    Vocabulary { world: usize, vocab: usize },
}

impl Coded for ShardError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

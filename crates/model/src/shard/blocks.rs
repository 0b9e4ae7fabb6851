//! Where matrices that are shared out by columns may be cut.

use super::{gcd, lcm};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerPart, TensorRole};

/// The blocks of the two matrices of a layer that are cut between columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Of the attention output.
    pub output: Block,
    pub down: Block,
}

/// Columns that stay together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// A tensor that asks for it.
    pub tensor: String,
    pub items: usize,
}

impl Blocks {
    /// The blocks of a checkpoint. Layers may be quantised differently: cuts suit all of them.
    ///
    /// # Errors
    /// [`CheckpointError`] where a matrix is missing.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let block = |part| {
            let mut block = Block { tensor: checkpoint.tensor_name(TensorRole::Layer(0, part)), items: 1 };
            for layer in 0..checkpoint.config().layers {
                let role = TensorRole::Layer(layer, part);
                let items = lcm(block.items, checkpoint.matrix(role)?.dtype.block_size());
                if items > block.items {
                    block = Block { tensor: checkpoint.tensor_name(role), items };
                }
            }
            Ok(block)
        };
        Ok(Self { output: block(LayerPart::Output)?, down: block(LayerPart::Down)? })
    }
}

impl Block {
    /// Heads that stay together: as many as make whole blocks.
    pub(super) fn heads(&self, head_dim: usize) -> usize {
        self.items / gcd(self.items, head_dim)
    }
}

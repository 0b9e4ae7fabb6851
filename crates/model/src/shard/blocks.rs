//! Where matrices that are shared out by columns may be cut.
//!
//! A cut is also where sums are cut: the products of the columns between two possible cuts are added up in f32, those
//! pieces in f64 (`hawser_device::linear::matmul_sums`). So pieces are the same for any number of ranks, and as long as
//! that number allows, for each costs a few instructions.

use super::{gcd, lcm};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerPart, TensorRole};

/// The blocks of the two matrices of a layer that are cut between columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Of the attention output.
    pub output: Block,
    pub down: Block,
}

/// Columns of a piece of down, if not even a block has more: enough that adding pieces costs little.
const LONG_PIECE: usize = 128;

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
        let config = checkpoint.config();
        let mut down = block(LayerPart::Down)?;
        down.items = long_piece(down.items, config.ffn, config.heads);
        Ok(Self { output: block(LayerPart::Output)?, down })
    }

    /// Columns of a piece of the attention output: whole heads.
    pub(crate) fn output_piece(&self, head_dim: usize) -> usize {
        self.output.heads(head_dim) * head_dim
    }
}

/// The longest piece of whole `block`s that leaves each of `most` ranks one.
fn long_piece(block: usize, columns: usize, most: usize) -> usize {
    let doubled = std::iter::successors(Some(block), |piece| Some(piece * 2));
    let fits = |piece: &usize| columns.is_multiple_of(*piece) && columns / piece >= most;
    doubled.take_while(|&piece| piece == block || piece <= LONG_PIECE).filter(fits).last().unwrap_or(block)
}

impl Block {
    /// Heads that stay together: as many as make whole blocks.
    pub(super) fn heads(&self, head_dim: usize) -> usize {
        self.items / gcd(self.items, head_dim)
    }
}

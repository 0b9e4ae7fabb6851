//! An engine without a model: for tests of load and faults, where what is computed does not matter and all the rest is
//! the real thing.
//!
//! Owns times that steps take, a hash per slot instead of KV rows, and a vocabulary of bytes. Promises that the same
//! history gives the same answer, wherever, in whatever chunks and after whatever demotion it is computed; that a wait
//! sleeps; and that nothing is allocated per layer or head. Never decides anything.

mod cost;
mod engine;
mod text;

use crate::moving::snapshot::Shape;
use crate::options::KvType;

pub use cost::SimulatedOptions;
pub use engine::{SimulatedEngine, SimulatedFormation};
pub use text::{END, SimulatedTextError, VOCABULARY, text};

/// Name of the model, where none is given, and digest of every simulated group.
pub const NAME: &str = "simulated";
/// Slots of the pool, where no number is given.
pub const DEFAULT_SLOTS: usize = 131_072;
/// Longest prompt plus generation, where no number is given.
pub const DEFAULT_CONTEXT: usize = 131_072;

/// What a moving session says of the model: rows of eight bytes, which is what a hash takes.
pub(crate) fn shape() -> Shape {
    let digest = NAME.to_owned();
    Shape { digest, kv_type: KvType::F16, layers: 1, heads: 1, kv_heads: 1, head_dim: 2 }
}

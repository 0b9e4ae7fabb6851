//! KV bookkeeping without IO: which slot holds which position of which session.
//!
//! Owns the slot pool, the slot maps, the prefix tree and the archive. Promises that a slot is free or held, never both, that a
//! map's live list is exactly its positions with a slot, in order, and that a row in the tree is never replaced. Never
//! touches tensors, clocks or devices.
#![forbid(unsafe_code)]

mod archive;
mod audit;
mod map;
mod pool;
pub mod retention;
mod tree;

pub use archive::{Archive, ArchiveId, BLOCK_POSITIONS, Block, RowMove};
pub use audit::{AuditError, audit, audit_with_tree};
pub use map::{EvictError, SlotMap};
pub use pool::{PoolExhausted, SlotPool};
pub use tree::PrefixTree;

//! KV bookkeeping without IO: which slot holds which position of which session.
//!
//! Owns the slot pool and the slot maps. Promises that a slot is free or held, never both, and that a map's live
//! list is exactly its positions with a slot, in order. Never touches tensors, clocks or devices.
#![forbid(unsafe_code)]

mod audit;
mod map;
mod pool;

pub use audit::{AuditError, audit};
pub use map::{EvictError, SlotMap};
pub use pool::{PoolExhausted, SlotPool};

//! CPU kernels over slot lists and packed weights; the only crate with unsafe code.
//!
//! Owns the memory that kernels read ([`memory`]), the threads they run on ([`threads`]), which instructions they
//! may use ([`cpu`]), the KV rows ([`kv`]), the arithmetic of a layer ([`attention`], [`linear`], [`ops`]; [`query_heads`]), the
//! scores by which history is kept ([`score`]) and what crosses the ranks of a group ([`collective`]).
//! Promises that a row's result depends on its own inputs only: never on the rows batched with it, on how a prompt
//! was cut into chunks, or on the number of threads. Never allocates in a step, but for a few words of a TCP group,
//! never decides which slots are live, never reads a configuration, and reads a clock only to bound a wait.
#![allow(unsafe_code, reason = "SIMD, raw memory and the thread pool live here, and nowhere else")]

pub mod attention;
pub mod collective;
pub mod cpu;
pub mod error;
pub mod kv;
pub mod limits;
pub mod linear;
pub mod mapped;
pub mod memory;
pub mod ops;
pub mod query_heads;
pub mod score;
mod simd;
pub mod threads;

pub use error::DeviceError;

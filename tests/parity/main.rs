//! Golden numbers: our arithmetic and our text against references computed elsewhere.

mod bad_checkpoints;
mod engine;
mod fixtures;
mod forward;
mod gguf;
mod greedy;
mod text;

//! Golden numbers: our arithmetic and our text against references computed elsewhere.
#![allow(clippy::print_stdout, clippy::panic, reason = "tests print their seeds and fail by panicking")]

mod agreement;
mod bad_checkpoints;
mod engine;
mod fixtures;
mod forward;
mod gguf;
mod greedy;
mod random;
mod ranks;
mod revival;
mod sessions;
mod shards;
mod text;

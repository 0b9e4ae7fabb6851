//! A language model as a function over slots: checkpoints, tokenizer, chat template, layers and sampling.
//!
//! [`checkpoint::Checkpoint`] reads a model from disk, [`executor::Executor`] runs its layers over the rows of a
//! [`executor::Batch`], [`shard`] shares a model out among the ranks of a group, [`text`] turns messages into tokens and back, [`sampling`] picks the next token.
//! Never decides which session runs or which slot a row gets: that arrives in the batch.

pub mod bench;
pub mod checkpoint;
pub mod config;
pub mod executor;
pub mod layers;
pub mod sampling;
pub mod shard;
pub mod text;

//! Choosing the next token from logits.
//!
//! Promises: the choice is a function of the logits, the parameters, the seed and the tokens before it, never of what
//! else runs in the batch; logits that are not numbers are an error, never a token. Never keeps logits.

mod logprobs;
mod penalties;
mod philox;
mod sampler;
mod select;
mod weights;

pub use sampler::{SampleError, Sampled, Sampler};

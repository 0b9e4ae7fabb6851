//! What a bench found, for people and for machines.

use hawser_device::kv::RowType;
use hawser_device::limits::Limits;
use serde::Serialize;

use crate::layers::Model;

/// A whole bench.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// How KV rows were stored.
    pub row_type: String,
    /// Weights that one decode step reads, in bytes.
    pub weight_bytes: usize,
    pub runs: Vec<Run>,
}

/// Measurements with one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub threads: usize,
    pub limits: MachineLimits,
    pub prefill: Vec<Prefill>,
    pub decode: Vec<Decode>,
    pub warm_turn: Option<WarmTurn>,
}

/// What the machine does when it does nothing else, with so many threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineLimits {
    /// The instruction set of the kernels.
    pub isa: String,
    /// Reading memory that no cache holds, in 10^9 bytes per second.
    pub memory_gb_per_s: f64,
    /// Reading what a last-level cache holds, in 10^9 bytes per second.
    pub cached_gb_per_s: f64,
    /// f32 operations, a multiply-add counting as two, in 10^9 per second.
    pub f32_gflop_per_s: f64,
    /// int8 operations, likewise.
    pub int8_gop_per_s: f64,
}

/// Prefill of a prompt from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prefill {
    pub tokens: usize,
    pub seconds: f64,
    pub tokens_per_second: f64,
    /// Operations of the matrix products and of attention per second, as a share of the f32 peak. Above 1 where
    /// products run in integers.
    pub share_of_f32_peak: f64,
}

/// Decode of one token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decode {
    /// Live positions before the token.
    pub depth: usize,
    pub seconds: f64,
    pub tokens_per_second: f64,
    /// Weights and KV rows read per second, as a share of what memory gives. Above 1 where a cache holds a part.
    pub share_of_memory_bandwidth: f64,
}

/// Time to the first token of a turn that adds to a session, with and without the session's KV rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WarmTurn {
    pub session_tokens: usize,
    pub added_tokens: usize,
    pub warm_seconds: f64,
    pub cold_seconds: f64,
}

impl From<Limits> for MachineLimits {
    fn from(limits: Limits) -> Self {
        Self {
            isa: format!("{:?}", limits.isa),
            memory_gb_per_s: limits.memory_gb_per_s,
            cached_gb_per_s: limits.cached_gb_per_s,
            f32_gflop_per_s: limits.f32_gflop_per_s,
            int8_gop_per_s: limits.int8_gop_per_s,
        }
    }
}

impl Prefill {
    pub(super) fn new(model: &Model, limits: &MachineLimits, tokens: usize, seconds: f64) -> Self {
        let config = model.config();
        let (hidden, ffn, q, kv) = (config.hidden, config.ffn, config.query_width(), config.kv_width());
        let weights = hidden * (2 * q + 2 * kv) + 3 * hidden * ffn;
        // Row i attends to i + 1 positions, with one product for scores and one for values.
        let attention = 2 * q * (tokens + 1) / 2;
        let per_token = 2.0 * (config.layers * (weights + attention)) as f64;
        let head = 2.0 * (hidden * config.vocab) as f64;
        let flops = tokens as f64 * per_token + head;
        Self {
            tokens,
            seconds,
            tokens_per_second: tokens as f64 / seconds,
            share_of_f32_peak: flops / seconds / (limits.f32_gflop_per_s * 1e9),
        }
    }
}

impl Decode {
    pub(super) fn new(
        model: &Model,
        row_type: RowType,
        limits: &MachineLimits,
        depth: usize,
        seconds: f64,
    ) -> Self {
        let config = model.config();
        let kv_bytes = depth * config.layers * 2 * config.kv_width() * row_type.bytes();
        let bytes = (model.bytes_per_step() + kv_bytes) as f64;
        Self {
            depth,
            seconds,
            tokens_per_second: 1.0 / seconds,
            share_of_memory_bandwidth: bytes / seconds / (limits.memory_gb_per_s * 1e9),
        }
    }
}

impl WarmTurn {
    pub(super) fn new(
        session_tokens: usize,
        added_tokens: usize,
        warm_seconds: f64,
        cold_seconds: f64,
    ) -> Self {
        Self { session_tokens, added_tokens, warm_seconds, cold_seconds }
    }
}

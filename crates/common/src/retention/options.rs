//! The options of a policy, their defaults and their bounds.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Aggregation, Policy};
use crate::{Coded, ErrorCode};

/// What a session keeps when its live history outgrows its budget. By default there is no budget, and everything is
/// kept; the rest is what did best in the evaluation (docs/retention.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    pub policy: Policy,
    /// C, tokens of live history after a prune; 0 is unbounded.
    pub budget_tokens: u32,
    /// T: a prune happens when more than C + T positions are live.
    pub trigger_tokens: u32,
    /// The first positions, always kept.
    pub sink_tokens: u32,
    /// The newest positions, always kept.
    pub recent_tokens: u32,
    /// Keep only the end of a request's own messages for certain: at most a quarter of the budget.
    pub span_cap: bool,
    pub aggregation: Aggregation,
    /// λ of the query memory: what is left of it after a turn is e^-λ.
    pub memory_decay: f32,
    /// μ: a score is worth e^-μ of itself for each turn of age.
    pub age_decay: f32,
    /// Added to the relative score (mean 1) of the agent's own messages, where attention scores.
    pub role_weight: f32,
    /// The same for the user's messages.
    pub user_weight: f32,
    /// Positions that live and die together, aligned to multiples of their number.
    pub block_tokens: u32,
    /// Keep what scores at least this much relative to the mean, within `threshold_min_tokens` and the budget; 0 is off.
    pub threshold: f32,
    /// Least tokens that a threshold leaves.
    pub threshold_min_tokens: u32,
    /// Least budget under pressure: as the pool fills from 60 to 90 %, the budget shrinks to it; 0 is off.
    pub adaptive_min_tokens: u32,
    /// Prune between the chunks of one long prompt too.
    pub bounded: bool,
    /// Bring evicted positions back, from the archive or the prefix tree, when a request attends to them.
    pub revive: bool,
    /// δ: what comes back must score so much more than what goes for it, as a share.
    pub revive_margin: f32,
    /// Most tokens that are computed again in one revival, for what comes back without a copy; 0 is off.
    pub refill_tokens: u32,
    /// Of the random policy.
    pub seed: u64,
    /// Rows of the prompt or the answer that score.
    pub window_rows: u32,
    /// Of the rows whose attention counts for h2o, one in so many: runs of 16 rows, and the end of each prompt.
    pub mass_every: u32,
    /// Positions over which a window's scores are averaged; odd.
    pub pool_positions: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            policy: Policy::RolePrior,
            budget_tokens: 0,
            trigger_tokens: 512,
            sink_tokens: 4,
            recent_tokens: 0,
            span_cap: true,
            aggregation: Aggregation::Sum,
            memory_decay: 0.5,
            age_decay: 0.0,
            role_weight: 16.0,
            user_weight: 8.0,
            block_tokens: 1,
            threshold: 0.0,
            threshold_min_tokens: 0,
            adaptive_min_tokens: 0,
            bounded: false,
            revive: false,
            revive_margin: 1.0,
            refill_tokens: 0,
            seed: 0,
            window_rows: 32,
            mass_every: 8,
            pool_positions: 5,
        }
    }
}

/// An option out of its bounds.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("retention.{option} is {found}; allowed is {allowed}")]
pub struct InvalidRetention {
    pub option: &'static str,
    pub found: String,
    pub allowed: &'static str,
}

impl Coded for InvalidRetention {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// Most rows that score: each costs a query per layer and head.
pub const MAX_WINDOW_ROWS: u32 = 64;

/// Most tokens that a revival computes again: a bound on what a turn may cost beside its prompt.
pub(super) const MAX_REFILL_TOKENS: u32 = 4_096;

impl Retention {
    /// Whether the session is ever pruned.
    #[must_use]
    pub fn prunes(&self) -> bool {
        self.policy != Policy::Full && self.budget_tokens > 0
    }

    /// # Errors
    /// [`InvalidRetention`] names the first option out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidRetention> {
        let whole = |option, found: u32, ok: bool, allowed| check(option, found.to_string(), ok, allowed);
        let real = |option, found: f32, most: f32, allowed| {
            check(option, found.to_string(), (0.0..=most).contains(&found), allowed)
        };
        let (window, pool, block) = (self.window_rows, self.pool_positions, self.block_tokens);
        whole("window_rows", window, (1..=MAX_WINDOW_ROWS).contains(&window), "1 to 64")?;
        whole("mass_every", self.mass_every, (1..=64).contains(&self.mass_every), "1 to 64")?;
        whole("pool_positions", pool, pool % 2 == 1 && pool < 64, "an odd number below 64")?;
        let refill = self.refill_tokens;
        whole("refill_tokens", refill, refill <= MAX_REFILL_TOKENS, "0 to 4096")?;
        whole("block_tokens", block, (1..=1_024).contains(&block), "1 to 1024")?;
        real("memory_decay", self.memory_decay, 100.0, "0 to 100")?;
        real("age_decay", self.age_decay, 100.0, "0 to 100")?;
        real("role_weight", self.role_weight, 1e6, "0 to 1e6")?;
        real("user_weight", self.user_weight, 1e6, "0 to 1e6")?;
        real("revive_margin", self.revive_margin, 1e6, "0 to 1e6")?;
        real("threshold", self.threshold, 1e6, "0 to 1e6")
    }
}

fn check(
    option: &'static str,
    found: String,
    ok: bool,
    allowed: &'static str,
) -> Result<(), InvalidRetention> {
    if ok { Ok(()) } else { Err(InvalidRetention { option, found, allowed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_bounds_is_named() {
        assert_eq!(Retention::default().validate(), Ok(()));
        let wrong = Retention { pool_positions: 4, ..Retention::default() };
        assert_eq!(wrong.validate().unwrap_err().option, "pool_positions");
        let wrong = Retention { memory_decay: f32::NAN, ..Retention::default() };
        assert_eq!(wrong.validate().unwrap_err().option, "memory_decay");
    }
}

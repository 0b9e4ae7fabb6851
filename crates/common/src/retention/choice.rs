//! What a request sets of a session's retention.

use super::{Aggregation, Policy, Retention};

/// Options that are set; the others stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    pub policy: Option<Policy>,
    pub budget_tokens: Option<u32>,
    pub trigger_tokens: Option<u32>,
    pub sink_tokens: Option<u32>,
    pub recent_tokens: Option<u32>,
    pub span_cap: Option<bool>,
    pub aggregation: Option<Aggregation>,
    pub memory_decay: Option<f32>,
    pub age_decay: Option<f32>,
    pub role_weight: Option<f32>,
    pub user_weight: Option<f32>,
    pub block_tokens: Option<u32>,
    pub threshold: Option<f32>,
    pub threshold_min_tokens: Option<u32>,
    pub adaptive_min_tokens: Option<u32>,
    pub bounded: Option<bool>,
    pub revive: Option<bool>,
    pub revive_margin: Option<f32>,
    pub refill_tokens: Option<u32>,
    pub seed: Option<u64>,
    pub window_rows: Option<u32>,
    pub mass_every: Option<u32>,
    pub pool_positions: Option<u32>,
}

impl Choice {
    /// The options of `base` with those that are set here in their place.
    #[must_use]
    pub fn over(&self, base: &Retention) -> Retention {
        Retention {
            policy: self.policy.unwrap_or(base.policy),
            budget_tokens: self.budget_tokens.unwrap_or(base.budget_tokens),
            trigger_tokens: self.trigger_tokens.unwrap_or(base.trigger_tokens),
            sink_tokens: self.sink_tokens.unwrap_or(base.sink_tokens),
            recent_tokens: self.recent_tokens.unwrap_or(base.recent_tokens),
            span_cap: self.span_cap.unwrap_or(base.span_cap),
            aggregation: self.aggregation.unwrap_or(base.aggregation),
            memory_decay: self.memory_decay.unwrap_or(base.memory_decay),
            age_decay: self.age_decay.unwrap_or(base.age_decay),
            role_weight: self.role_weight.unwrap_or(base.role_weight),
            user_weight: self.user_weight.unwrap_or(base.user_weight),
            block_tokens: self.block_tokens.unwrap_or(base.block_tokens),
            threshold: self.threshold.unwrap_or(base.threshold),
            threshold_min_tokens: self.threshold_min_tokens.unwrap_or(base.threshold_min_tokens),
            adaptive_min_tokens: self.adaptive_min_tokens.unwrap_or(base.adaptive_min_tokens),
            bounded: self.bounded.unwrap_or(base.bounded),
            revive: self.revive.unwrap_or(base.revive),
            revive_margin: self.revive_margin.unwrap_or(base.revive_margin),
            refill_tokens: self.refill_tokens.unwrap_or(base.refill_tokens),
            seed: self.seed.unwrap_or(base.seed),
            window_rows: self.window_rows.unwrap_or(base.window_rows),
            mass_every: self.mass_every.unwrap_or(base.mass_every),
            pool_positions: self.pool_positions.unwrap_or(base.pool_positions),
        }
    }
}

impl From<&Retention> for Choice {
    fn from(all: &Retention) -> Self {
        Self {
            policy: Some(all.policy),
            budget_tokens: Some(all.budget_tokens),
            trigger_tokens: Some(all.trigger_tokens),
            sink_tokens: Some(all.sink_tokens),
            recent_tokens: Some(all.recent_tokens),
            span_cap: Some(all.span_cap),
            aggregation: Some(all.aggregation),
            memory_decay: Some(all.memory_decay),
            age_decay: Some(all.age_decay),
            role_weight: Some(all.role_weight),
            user_weight: Some(all.user_weight),
            block_tokens: Some(all.block_tokens),
            threshold: Some(all.threshold),
            threshold_min_tokens: Some(all.threshold_min_tokens),
            adaptive_min_tokens: Some(all.adaptive_min_tokens),
            bounded: Some(all.bounded),
            revive: Some(all.revive),
            revive_margin: Some(all.revive_margin),
            refill_tokens: Some(all.refill_tokens),
            seed: Some(all.seed),
            window_rows: Some(all.window_rows),
            mass_every: Some(all.mass_every),
            pool_positions: Some(all.pool_positions),
        }
    }
}

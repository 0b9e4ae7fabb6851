//! Log-probabilities of the model's own distribution: softmax over the logits as the model gave them, before
//! penalties, temperature and cut-offs.

use super::select;
use super::weights::Weights;

/// The parts of the distribution that log-probabilities need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution {
    most: f32,
    /// ln Σ exp(logit − most).
    log_sum: f64,
}

impl Distribution {
    pub(super) fn new(logits: &[f32], most: f32) -> Self {
        Self { most, log_sum: Weights::new(most, 1.0).total(logits).ln() }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the result is given in single precision")]
    pub(super) fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.most) - self.log_sum) as f32
    }

    /// The `count` most likely tokens, most likely first.
    pub(super) fn top(&self, logits: &[f32], count: usize) -> Vec<(u32, f32)> {
        select::greatest(logits, count).into_iter().map(|(id, logit)| (id, self.of(logit))).collect()
    }
}

//! How far a distribution over the next token is from another one.

/// Sums over scored tokens. In nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    pub tokens: u64,
    /// Σ KL(full ‖ pruned).
    pub kl: f64,
    /// Tokens whose likeliest successor is the same.
    pub agreeing: u64,
    /// Σ −log p of the recorded token with the full cache.
    pub nll_full: f64,
    /// The same with the pruned one.
    pub nll_pruned: f64,
}

impl Quality {
    /// One token: two log-probability vectors and what was recorded.
    #[must_use]
    pub fn of(full: &[f32], pruned: &[f32], token: usize) -> Self {
        let mut kl = 0.0;
        for (&p, &q) in full.iter().zip(pruned) {
            kl += f64::from(p.exp()) * f64::from(p - q);
        }
        Self {
            tokens: 1,
            kl: kl.max(0.0),
            agreeing: u64::from(likeliest(full) == likeliest(pruned)),
            nll_full: -f64::from(full[token]),
            nll_pruned: -f64::from(pruned[token]),
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.kl += other.kl;
        self.agreeing += other.agreeing;
        self.nll_full += other.nll_full;
        self.nll_pruned += other.nll_pruned;
    }
}

/// Log-probabilities of a row of logits.
#[must_use]
pub fn distribution(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
    let norm = largest + sum.ln() as f32;
    logits.iter().map(|logit| logit - norm).collect()
}

/// The first of the largest.
fn likeliest(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_of_a_known_pair_is_exact() {
        let full = distribution(&[0.0, 0.0]);
        let pruned = distribution(&[3.0f32.ln(), 0.0]);
        let quality = Quality::of(&full, &pruned, 1);
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((quality.kl - expected).abs() < 1e-6, "{quality:?}");
        assert!((quality.nll_pruned - 4.0f64.ln()).abs() < 1e-6);
        assert_eq!(quality.agreeing, 1, "the first of equal ones");
        assert_eq!(Quality::of(&full, &full, 0).kl, 0.0);
    }
}

//! Penalties on tokens that were there before.
//!
//! Repetition (Keskar et al. 2019, CTRL): a logit above zero is divided, one below multiplied, for every token of the
//! prompt or the answer. Presence and frequency (OpenAI's API): subtracted once, and once per occurrence, for tokens
//! of the answer only.

use std::collections::BTreeMap;

/// The tokens so far, as far as the penalties need them. Cheap to clone: a bit per vocabulary entry, and the answer's
/// own tokens.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Bit per id that occurred anywhere; empty without a repetition penalty.
    seen: Vec<u64>,
    /// Occurrences in the answer; empty without presence and frequency penalties.
    counts: BTreeMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(repetition: f32, presence: f32, frequency: f32) -> Self {
        Self { repetition, presence, frequency, seen: Vec::new(), counts: BTreeMap::new() }
    }

    fn repeats(&self) -> bool {
        self.repetition != 1.0
    }

    fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    /// Whether the logits are left as they are.
    pub(super) fn are_neutral(&self) -> bool {
        !self.repeats() && !self.counts()
    }

    pub(super) fn observe_prompt(&mut self, tokens: &[u32]) {
        if self.repeats() {
            tokens.iter().for_each(|token| self.mark(*token));
        }
    }

    pub(super) fn observe(&mut self, token: u32) {
        if self.repeats() {
            self.mark(token);
        }
        if self.counts() {
            *self.counts.entry(token).or_insert(0) += 1;
        }
    }

    fn mark(&mut self, token: u32) {
        let word = token as usize / 64;
        // Ids come from a vocabulary; one beyond any is not worth its memory.
        if token < 1 << 24 {
            if self.seen.len() <= word {
                self.seen.resize(word + 1, 0);
            }
            self.seen[word] |= 1 << (token % 64);
        }
    }

    /// Changes the logits, by id.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (word, bits) in self.seen.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let id = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(logit) = logits.get_mut(id) {
                    *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
                }
            }
        }
        for (id, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit -= self.presence + self.frequency * *count as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_penalty_sees_its_own_tokens() {
        let mut penalties = Penalties::new(2.0, 0.5, 0.25);
        penalties.observe_prompt(&[1, 70, 9_000_000]);
        for token in [2, 2, 1] {
            penalties.observe(token);
        }
        let mut logits = vec![1.0; 71];
        logits[70] = -1.0;
        penalties.apply(&mut logits);
        assert_eq!(logits[0], 1.0);
        assert_eq!(logits[1], 0.5 - 0.5 - 0.25);
        assert_eq!(logits[2], 0.5 - 0.5 - 0.5);
        assert_eq!(logits[70], -2.0, "below zero it is multiplied; the prompt has no presence");
    }

    #[test]
    fn neutral_penalties_keep_no_state() {
        let mut penalties = Penalties::new(1.0, 0.0, 0.0);
        penalties.observe_prompt(&[5]);
        penalties.observe(5);
        assert!(penalties.are_neutral() && penalties.seen.is_empty() && penalties.counts.is_empty());
    }
}

//! What a synthetic session is made of, and the bounds of each number.

use super::words::{COLOURS, DESKS, SITES};

const MAX_FACTS: usize = 16;
const MAX_GAP: usize = 32;
const MAX_FILLER_BYTES: usize = 1 << 20;

/// How the assistant gives a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// In a sentence.
    Text,
    /// As the argument of a tool call.
    Call,
}

/// Parameters of synthetic sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticOptions {
    /// Sites. The first one is left and come back to, the others fill the gap.
    pub topics: usize,
    /// Desks of a site that are asked for; the session comes back to the first site `facts - 1` times.
    pub facts: usize,
    /// Turns about other sites before the session comes back to the first one.
    pub gap: usize,
    /// Filler in each directory, in bytes, rounded up to whole sentences.
    pub filler_bytes: usize,
    /// Desks of a site that are never asked for, in the same words as those that are.
    pub distractors: usize,
    pub answer: Answer,
    pub seed: u64,
}

impl Default for SyntheticOptions {
    /// About two thousand tokens, most of them in three directories.
    fn default() -> Self {
        Self {
            topics: 3,
            facts: 3,
            gap: 3,
            filler_bytes: 1_500,
            distractors: 3,
            answer: Answer::Call,
            seed: 0,
        }
    }
}

/// An option beyond its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSynthetic {
    #[error("{topics} topics; allowed are 2 to {}", SITES.len())]
    Topics { topics: usize },
    #[error("{facts} facts; allowed are 2 to {MAX_FACTS}")]
    Facts { facts: usize },
    #[error("a gap of {gap} turns; allowed are 1 to {MAX_GAP}")]
    Gap { gap: usize },
    #[error("{filler_bytes} bytes of filler; at most {MAX_FILLER_BYTES} are allowed")]
    Filler { filler_bytes: usize },
    #[error("{distractors} distractors; with these topics and facts at most {most} are allowed")]
    Distractors { distractors: usize, most: usize },
}

impl SyntheticOptions {
    /// All options in short, so that sessions of different ones have different ids.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { topics, facts, gap, filler_bytes, distractors, answer, seed } = self;
        let answer = match answer {
            Answer::Text => "text",
            Answer::Call => "call",
        };
        format!("t{topics}-f{facts}-g{gap}-b{filler_bytes}-d{distractors}-{answer}-s{seed}")
    }

    /// # Errors
    /// [`InvalidSynthetic`] for the first option beyond its bounds.
    pub fn check(&self) -> Result<(), InvalidSynthetic> {
        let Self { topics, facts, gap, filler_bytes, distractors, .. } = *self;
        if !(2..=SITES.len()).contains(&topics) {
            return Err(InvalidSynthetic::Topics { topics });
        }
        if !(2..=MAX_FACTS).contains(&facts) {
            return Err(InvalidSynthetic::Facts { facts });
        }
        if !(1..=MAX_GAP).contains(&gap) {
            return Err(InvalidSynthetic::Gap { gap });
        }
        if filler_bytes > MAX_FILLER_BYTES {
            return Err(InvalidSynthetic::Filler { filler_bytes });
        }
        // Every desk of a session has a name of its own.
        let most = COLOURS.len() * DESKS.len() / topics - facts;
        if distractors > most {
            return Err(InvalidSynthetic::Distractors { distractors, most });
        }
        Ok(())
    }
}

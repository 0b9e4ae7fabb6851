//! Which history a session keeps: the policy and its options, as a request or a configuration chooses them.
//!
//! Only vocabulary and bounds; what a policy does is in the `kv` crate.

mod choice;
mod options;

pub use choice::Choice;
pub use options::{InvalidRetention, MAX_WINDOW_ROWS, Retention};

use serde::{Deserialize, Serialize};

/// Retention policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Keep everything.
    Full,
    /// The newest positions.
    Streaming,
    /// What the last rows of the prompt attend to.
    #[serde(rename = "snapkv")]
    SnapKv,
    /// What all rows so far have attended to, and the newest.
    H2o,
    /// A seeded hash of the position: what every other policy must beat.
    Random,
    /// The agent's own messages first, then the newest.
    RolePrior,
    /// What the mean query of the request attends to.
    IntentQuery,
    /// The same for a memory of the session's mean queries, each normalised before it is added.
    IntentMemory,
    /// The memory as published: added as they are, normalised after.
    IntentMemoryPaper,
    /// What the rows of the agent's own last answer attend to.
    AnswerRows,
}

impl Policy {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Full,
        Self::Streaming,
        Self::SnapKv,
        Self::H2o,
        Self::Random,
        Self::RolePrior,
        Self::IntentQuery,
        Self::IntentMemory,
        Self::IntentMemoryPaper,
        Self::AnswerRows,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Streaming => "streaming",
            Self::SnapKv => "snapkv",
            Self::H2o => "h2o",
            Self::Random => "random",
            Self::RolePrior => "role-prior",
            Self::IntentQuery => "intent-query",
            Self::IntentMemory => "intent-memory",
            Self::IntentMemoryPaper => "intent-memory-paper",
            Self::AnswerRows => "answer-rows",
        }
    }

    /// The policy of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

/// How the scores of all heads become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Their sum, as published.
    Sum,
    /// The largest.
    Max,
    /// How many heads have the position among their own best.
    Vote,
}

impl Aggregation {
    pub const ALL: &[Self] = &[Self::Sum, Self::Max, Self::Vote];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Vote => "vote",
        }
    }

    /// The aggregation of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|aggregation| aggregation.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::Serialized;

    use super::*;

    #[test]
    fn names_are_the_same_in_requests_and_in_files() {
        for &policy in Policy::ALL {
            assert_eq!(Policy::parse(policy.name()), Some(policy));
            let read = Figment::from(Serialized::default("policy", policy.name()));
            assert_eq!(read.extract_inner::<Policy>("policy").ok(), Some(policy));
        }
        assert_eq!(Policy::parse("lru"), None);
    }
}

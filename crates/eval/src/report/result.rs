//! The file of results: what was measured, on what, turn by turn.
//!
//! Owns the names and units of the file and its version. A file that parses is sound: its format is known, its numbers
//! are finite, and no count exceeds what it is counted out of. Never summarises.

use std::collections::BTreeMap;
use std::fmt;

use hawser_common::retention::Retention;
use serde::{Deserialize, Serialize};

use super::budget::BudgetLabel;

/// Version of the file; a change that older readers would misread raises it.
pub const FORMAT: u32 = 2;

/// Why text is not a file of results, or results do not make one.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    #[error("this is no file of results: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("results of format {found} cannot be read; this version reads format {FORMAT}")]
    UnknownFormat { found: u32 },
    #[error("session {trace:?} under {policy:?}, turn {turn}: {what}")]
    Unsound { trace: String, policy: String, turn: usize, what: &'static str },
}

/// One run of the evaluation: the JSON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`FORMAT`].
    pub format: u32,
    pub run: RunInfo,
    pub sessions: Vec<SessionResult>,
}

/// What a run needs to be told apart from others, and repeated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub model: String,
    /// SHA-256 of the weights, in hexadecimal.
    pub model_digest: String,
    pub tokenizer: String,
    /// How KV rows were stored.
    pub kv_type: String,
    /// Each policy that was replayed with its options; the budget in them stands for none, results name theirs.
    pub policies: BTreeMap<String, Retention>,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// The command line, to repeat the run.
    pub command: String,
    /// Processor and memory, in words.
    pub machine: String,
    pub threads: usize,
    /// When the run began, in seconds since 1970.
    pub started_unix_s: u64,
}

/// One trajectory, replayed under one policy and budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionResult {
    /// Id of the trajectory, the same under every policy: sessions are paired by it.
    pub trace: String,
    /// Digest of what was replayed: see [`crate::resume::content_digest`].
    pub content: String,
    /// The part of the data that the trajectory belongs to, such as `dev` or `test`.
    pub split: String,
    /// Name of the policy. `random-1`, `random-2` and so on are seeds of `random`.
    pub policy: String,
    pub budget: BudgetLabel,
    pub mode: Mode,
    /// Length N of the whole session, in tokens.
    pub tokens: usize,
    /// One for each assistant message, in order.
    pub turns: Vec<TurnResult>,
}

/// How the rows of a replay come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Rows of the run with the full cache, under a mask of what was evicted: shows the choice of tokens alone.
    OpenLoop,
    /// Rows computed over what was still live, as in service.
    ClosedLoop,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenLoop => "open loop",
            Self::ClosedLoop => "closed loop",
        })
    }
}

/// One request: a prefill, a prune where it is due, and the recorded answer, teacher-forced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnResult {
    /// Over the scored tokens of the answer.
    pub scored: Scores,
    /// Over those of them that repeat a value from earlier in the session.
    pub argument: Scores,
    /// Over those of them that are numbers from an earlier turn: see [`crate::needles`].
    pub needle: Scores,
    /// Tokens of those numbers where they stand in earlier turns.
    pub needle_tokens: u64,
    /// Those of them that are live as the answer begins.
    pub needle_live: u64,
    /// Rows read while decoding: the sum over steps of the live rows that a layer sees, averaged over layers.
    pub kv_rows_read: f64,
    /// The same on the same trajectory with nothing evicted.
    pub kv_rows_full: f64,
    /// Reads of scoring, in rows: half a row for each candidate whose key is read.
    pub scoring_rows: f64,
    /// Prune events.
    pub events: u32,
    /// Events whose forced tokens alone exceeded the budget.
    pub budget_overflow: u32,
    /// Positions that came back to life, by whatever way.
    pub revived: u64,
    /// Rows that were computed anew for that: of some of them, and of what these see.
    pub refilled: u64,
    /// Those of them whose rows were copied back from the host.
    pub copied: u64,
    /// Positions that were marked dead.
    pub evicted: u64,
    /// Slots that returned to the pool.
    pub freed: u64,
    /// Most live positions at any time of the turn.
    pub peak_live: u64,
    /// Tokens of the prompt, those of earlier turns among them.
    pub prompt_tokens: u64,
    pub prefix_hit: PrefixHit,
    pub score_us: u64,
    pub prefill_us: u64,
    pub decode_us: u64,
}

/// Sums over tokens that were scored. Entropies are in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// How many tokens were scored.
    pub tokens: u64,
    /// KL(full ‖ pruned) of the next-token distributions.
    pub kl_sum: f64,
    /// Tokens at which both distributions have the same most likely token.
    pub top1_agree: u64,
    /// Negative log-likelihood of the recorded token, with the full cache.
    pub nll_full_sum: f64,
    /// The same with the pruned one.
    pub nll_pruned_sum: f64,
}

/// Where the tokens of a prompt came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixHit {
    /// Matched, with a live row.
    pub live: u64,
    /// Matched and dead: skipped, without a row.
    pub dead: u64,
    /// Computed.
    pub miss: u64,
}

impl RunResult {
    /// A run of the current format.
    #[must_use]
    pub fn new(run: RunInfo, sessions: Vec<SessionResult>) -> Self {
        Self { format: FORMAT, run, sessions }
    }

    /// Reads a file of results.
    ///
    /// # Errors
    /// Text that is no such file, a format this version does not know, and numbers that cannot be.
    pub fn parse(text: &str) -> Result<Self, ResultError> {
        /// The part that every format has.
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format: found } = serde_json::from_str(text)?;
        if found != FORMAT {
            return Err(ResultError::UnknownFormat { found });
        }
        let run: Self = serde_json::from_str(text)?;
        run.check()?;
        Ok(run)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// Numbers that cannot be: they would make a file that [`RunResult::parse`] refuses.
    pub fn to_json(&self) -> Result<String, ResultError> {
        self.check()?;
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// The run with the sessions of one split only.
    #[must_use]
    pub fn of_split(&self, split: &str) -> Self {
        let sessions = self.sessions.iter().filter(|session| session.split == split).cloned().collect();
        Self { format: self.format, run: self.run.clone(), sessions }
    }

    /// Finds numbers that cannot be.
    fn check(&self) -> Result<(), ResultError> {
        for session in &self.sessions {
            for (turn, result) in session.turns.iter().enumerate() {
                if let Some(what) = result.unsound() {
                    let (trace, policy) = (session.trace.clone(), session.policy.clone());
                    return Err(ResultError::Unsound { trace, policy, turn, what });
                }
            }
        }
        Ok(())
    }
}

impl TurnResult {
    fn unsound(&self) -> Option<&'static str> {
        let scores = |of: &Scores| [of.kl_sum, of.nll_full_sum, of.nll_pruned_sum];
        let kinds = [&self.scored, &self.argument, &self.needle];
        let mut numbers = kinds.into_iter().flat_map(scores).chain([
            self.kv_rows_read,
            self.kv_rows_full,
            self.scoring_rows,
        ]);
        if !numbers.all(f64::is_finite) {
            Some("a sum is not finite")
        } else if kinds.iter().any(|of| of.top1_agree > of.tokens) {
            Some("more tokens agree than were scored")
        } else if self.argument.tokens.max(self.needle.tokens) > self.scored.tokens {
            Some("more argument or needle tokens than scored ones")
        } else if self.needle_live > self.needle_tokens {
            Some("more tokens of needles are live than there are")
        } else if [self.kv_rows_read, self.kv_rows_full, self.scoring_rows].iter().any(|rows| *rows < 0.0) {
            Some("a count of rows is negative")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::hand_made;
    use super::*;

    #[test]
    fn a_file_of_results_comes_back_as_it_was_written() {
        let run = hand_made();
        let text = run.to_json().unwrap();
        assert_eq!(RunResult::parse(&text).unwrap(), run);
        for key in ["\"budget\": \"25%\"", "\"mode\": \"closed_loop\"", "\"format\": 2", "\"kl_sum\""] {
            assert!(text.contains(key), "{key} is not in\n{text}");
        }
    }

    #[test]
    fn an_unknown_format_is_refused_before_its_fields_are_read() {
        let refused = RunResult::parse(r#"{"format": 3, "everything": "else"}"#).unwrap_err();
        assert!(matches!(refused, ResultError::UnknownFormat { found: 3 }), "{refused}");
        assert!(refused.to_string().contains("format 3"), "{refused}");
        assert!(matches!(RunResult::parse("{}"), Err(ResultError::Malformed(_))));
        assert!(matches!(RunResult::parse(r#"{"format": 2}"#), Err(ResultError::Malformed(_))));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_both_ways() {
        let spoils: [fn(&mut TurnResult); 4] = [
            |turn| turn.argument.kl_sum = f64::NAN,
            |turn| turn.scored.top1_agree = turn.scored.tokens + 1,
            |turn| turn.argument.tokens = turn.scored.tokens + 1,
            |turn| turn.scoring_rows = -1.0,
        ];
        for (index, spoil) in spoils.into_iter().enumerate() {
            let mut run = hand_made();
            spoil(&mut run.sessions[0].turns[0]);
            let refused = run.to_json();
            assert!(matches!(refused, Err(ResultError::Unsound { turn: 0, .. })), "{index}: {refused:?}");
            if index > 0 {
                let text = serde_json::to_string(&run).unwrap();
                assert!(matches!(RunResult::parse(&text), Err(ResultError::Unsound { .. })), "{index}");
            }
        }
    }
}

//! What a simulated step costs. Pure.
//!
//! A step reads every weight once and multiplies each of its rows by them; whichever takes longer is its time. To that
//! comes reading the live rows of its sequences. The defaults are those of Llama 3 8B in bf16 on one A100 of 80 GB, from
//! the published figures of both: 8.03 billion weights, 128 KiB of keys and values a token, 2,039 GB/s of memory, 312
//! TFLOP/s of which half is reached.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::options::InvalidOptions;

/// Longest that any part may be told to take: a second.
const MAX_NS: u64 = 1_000_000_000;

/// Times and answers of the simulated engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimulatedOptions {
    /// Multiplying one row by the weights, in nanoseconds: what a prompt's token costs.
    pub prefill_token_ns: u64,
    /// Reading the weights once, in microseconds: the least that a step takes.
    pub decode_step_us: u64,
    /// Reading the keys and values of one live token, in nanoseconds.
    pub live_token_ns: u64,
    /// Scoring one candidate of a prune, in nanoseconds.
    pub candidate_ns: u64,
    /// All of these are multiplied by it; 0: nothing takes time.
    pub time_scale: f64,
    /// Mean length of an answer in tokens, its end included: each token ends it with the same probability. 0: answers
    /// end at the request's limit only.
    pub answer_tokens: u64,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        Self {
            // 2 · 8.03e9 operations at 156e12 a second.
            prefill_token_ns: 103_000,
            // 16.06e9 bytes at 2.039e12 a second.
            decode_step_us: 7_900,
            // 131,072 bytes, and for scores the keys alone.
            live_token_ns: 64,
            candidate_ns: 32,
            time_scale: 1.0,
            answer_tokens: 128,
        }
    }
}

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) rows: usize,
    /// Live tokens that the step's sequences see, own rows included.
    pub(super) live: usize,
}

impl SimulatedOptions {
    /// # Errors
    /// [`InvalidOptions`] names the first key out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        let checks = [
            ("simulated.prefill_token_ns", self.prefill_token_ns, MAX_NS, "at most 1000000000"),
            ("simulated.decode_step_us", self.decode_step_us, MAX_NS / 1_000, "at most 1000000"),
            ("simulated.live_token_ns", self.live_token_ns, MAX_NS, "at most 1000000000"),
            ("simulated.candidate_ns", self.candidate_ns, MAX_NS, "at most 1000000000"),
        ];
        for (key, found, most, allowed) in checks {
            if found > most {
                return Err(InvalidOptions::Value { key, found, allowed });
            }
        }
        if (0.0..=1_000.0).contains(&self.time_scale) {
            Ok(())
        } else {
            Err(InvalidOptions::TimeScale { found: self.time_scale })
        }
    }

    pub(super) fn step_time(&self, work: Work) -> Duration {
        let rows = (work.rows as u64).saturating_mul(self.prefill_token_ns);
        let weights = self.decode_step_us.saturating_mul(1_000);
        let live = (work.live as u64).saturating_mul(self.live_token_ns);
        self.scaled(rows.max(weights).saturating_add(live))
    }

    pub(super) fn score_time(&self, candidates: usize) -> Duration {
        self.scaled((candidates as u64).saturating_mul(self.candidate_ns))
    }

    fn scaled(&self, nanos: u64) -> Duration {
        // A scale of a thousand and a step of a day are within what a duration holds.
        Duration::from_nanos(nanos).min(Duration::from_secs(86_400)).mul_f64(self.time_scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_the_longer_of_weights_and_rows_and_then_the_live_rows() {
        let options = SimulatedOptions {
            prefill_token_ns: 1_000,
            decode_step_us: 10,
            live_token_ns: 5,
            candidate_ns: 3,
            time_scale: 2.0,
            ..SimulatedOptions::default()
        };
        let time = |rows, live| options.step_time(Work { rows, live }).as_nanos();
        assert_eq!(time(1, 0), 20_000, "one row waits for the weights");
        assert_eq!(time(10, 0), 20_000);
        assert_eq!(time(64, 0), 128_000);
        assert_eq!(time(1, 100), 21_000);
        assert_eq!(options.score_time(100).as_nanos(), 600);
        let free = SimulatedOptions { time_scale: 0.0, ..options };
        assert_eq!(free.step_time(Work { rows: 4_096, live: usize::MAX }), Duration::ZERO);
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let ok = SimulatedOptions::default();
        ok.validate().unwrap();
        for (wrong, key) in [
            (SimulatedOptions { prefill_token_ns: MAX_NS + 1, ..ok.clone() }, "simulated.prefill_token_ns"),
            (SimulatedOptions { decode_step_us: u64::MAX, ..ok.clone() }, "simulated.decode_step_us"),
            (SimulatedOptions { time_scale: -0.5, ..ok.clone() }, "simulated.time_scale"),
            (SimulatedOptions { time_scale: f64::NAN, ..ok }, "simulated.time_scale"),
        ] {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}

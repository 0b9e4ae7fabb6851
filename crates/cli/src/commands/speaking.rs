//! A turn as people see it: text as it comes, then one line of what it cost.

use std::time::Duration;

use hawser_client::{ClientError, Outcome, Sampling, Turn, TurnEvent, TurnReport, wire};
use hawser_common::clock::{Clock, Tick};

use crate::console::{count, counted, time};

/// How tokens are chosen, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct SamplingOptions {
    /// Most tokens of one answer
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_tokens: u32,
    /// 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.3)]
    pub temperature: f32,
    /// Keep the smallest set of tokens with at least this probability
    #[arg(long, value_name = "P", default_value_t = 0.9)]
    pub top_p: f32,
    /// Above 1 makes repetitions less likely
    #[arg(long, value_name = "R", default_value_t = 1.1)]
    pub repetition_penalty: f32,
    /// Same seed, same input, same tokens
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingOptions {
    pub fn sampling(&self) -> Sampling {
        let base = Sampling::new()
            .max_tokens(self.max_tokens)
            .temperature(self.temperature)
            .top_p(self.top_p)
            .repetition_penalty(self.repetition_penalty);
        let base = match self.seed {
            Some(seed) => base.seed(seed),
            None => base,
        };
        self.stop.iter().fold(base, |sampling, text| sampling.stop(text.as_str()))
    }
}

/// A turn that ended well, with its times as this side saw them.
#[derive(Clone, Debug)]
pub struct Spoken {
    pub outcome: Outcome,
    pub first_token: Duration,
    /// From the first token to the last.
    pub answering: Duration,
}

/// Runs a turn to its end; `show` gets each piece of text. `began` is since when people wait for it.
pub async fn speak(
    mut turn: Turn<'_>,
    clock: &Clock,
    began: Tick,
    mut show: impl FnMut(&str),
) -> Result<Spoken, ClientError> {
    let (mut placed, mut text, mut first, mut answering) = (None, String::new(), None, Duration::ZERO);
    while let Some(event) = turn.next().await? {
        match event {
            TurnEvent::Placed(found) => placed = Some(found),
            TurnEvent::Tokens(tokens) => {
                let now = clock.now();
                answering = now.since(*first.get_or_insert(now));
                show(&tokens.text);
                text.push_str(&tokens.text);
            }
            TurnEvent::Finished(report) => {
                let first_token = first.unwrap_or_else(|| clock.now()).since(began);
                let placed = placed.ok_or(ClientError::Protocol { what: "a turn without placement" })?;
                return Ok(Spoken { outcome: Outcome { placed, text, report }, first_token, answering });
            }
        }
    }
    Err(ClientError::Protocol { what: "a turn without an end" })
}

impl Spoken {
    /// Where it ran, tokens, times; and why it ended where that is not the model's own choice.
    pub fn summary(&self) -> String {
        let TurnReport { usage, reason, .. } = &self.outcome.report;
        let ended = match reason {
            wire::FinishReason::Length => " · cut at max tokens",
            wire::FinishReason::StopString => " · at a stop text",
            wire::FinishReason::Stop | wire::FinishReason::Unspecified => "",
        };
        format!(
            "{} · prompt {} = {} reused{} + {} prefilled{} · {} generated · first token {} · {:.0} tok/s{ended}",
            self.route(),
            count(usage.prompt_tokens.into()),
            count(usage.reused_tokens.into()),
            some(" (", usage.dead_tokens, " dead)"),
            count(usage.prefilled_tokens.into()),
            some(" · ", usage.evicted_tokens, " evicted"),
            count(usage.generated_tokens.into()),
            time(self.first_token),
            self.rate(),
        )
    }

    /// The group, and those that went on after it was lost.
    fn route(&self) -> String {
        let went_on = self.outcome.report.continued.iter().map(|next| {
            let before = counted(next.after_tokens.into(), "token");
            format!(", continued on {} after {before}", next.group)
        });
        std::iter::once(self.outcome.placed.group.clone()).chain(went_on).collect()
    }

    /// Tokens per second. Where the turn went on elsewhere, of the whole answer and with the wait in it: no group knows
    /// that.
    fn rate(&self) -> f64 {
        let report = &self.outcome.report;
        if report.continued.is_empty() {
            return report.decode_rate();
        }
        match self.answering.as_secs_f64() {
            0.0 => 0.0,
            seconds => f64::from(report.usage.generated_tokens.saturating_sub(1)) / seconds,
        }
    }
}

/// A count between two texts; nothing where it is 0.
fn some(before: &str, number: u32, after: &str) -> String {
    if number == 0 { String::new() } else { format!("{before}{}{after}", count(number.into())) }
}

/// Sums over the turns of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    turns: u64,
    prompt: u64,
    reused: u64,
    generated: u64,
}

impl Totals {
    pub fn add(&mut self, spoken: &Spoken) {
        let usage = &spoken.outcome.report.usage;
        self.turns += 1;
        self.prompt += u64::from(usage.prompt_tokens);
        self.reused += u64::from(usage.reused_tokens);
        self.generated += u64::from(usage.generated_tokens);
    }

    pub fn summary(&self) -> String {
        let share = (self.reused * 100).checked_div(self.prompt).unwrap_or(0);
        format!(
            "{} · {}, {share} % reused · {} generated",
            counted(self.turns, "turn"),
            counted(self.prompt, "prompt token"),
            count(self.generated)
        )
    }
}

#[cfg(test)]
mod tests {
    use hawser_client::{Continued, Placed};

    use super::*;

    fn spoken(usage: wire::Usage) -> Spoken {
        let placed = Placed { group: "a".into(), epoch: 1, model: "tiny".into(), resent: false };
        let reason = wire::FinishReason::Stop;
        let timings = wire::Timings::default();
        let report =
            TurnReport { reason, stop: None, usage, timings, continued: Vec::new(), seed: 1, turn: 2 };
        let (first_token, answering) = (Duration::from_millis(5), Duration::from_secs(10));
        Spoken { outcome: Outcome { placed, text: String::new(), report }, first_token, answering }
    }

    #[test]
    fn what_a_prune_did_is_shown_where_there_was_one() {
        let plain = wire::Usage {
            prompt_tokens: 2_100,
            reused_tokens: 2_000,
            prefilled_tokens: 100,
            generated_tokens: 8,
            ..Default::default()
        };
        let shown = spoken(plain).summary();
        let start = "a · prompt 2,100 = 2,000 reused + 100 prefilled · 8 generated · first token 5 ms";
        assert!(shown.starts_with(start), "{shown}");
        let pruned = wire::Usage { dead_tokens: 1_500, evicted_tokens: 60, ..plain };
        let shown = spoken(pruned).summary();
        let start = "a · prompt 2,100 = 2,000 reused (1,500 dead) + 100 prefilled · 60 evicted · 8 generated";
        assert!(shown.starts_with(start), "{shown}");
    }

    #[test]
    fn a_turn_that_went_on_elsewhere_says_so_and_counts_its_whole_answer_and_the_wait() {
        let mut turn = spoken(wire::Usage { generated_tokens: 101, ..Default::default() });
        turn.outcome.report.timings.decode_us = 100_000;
        let continued = |group: &str, after_tokens| Continued { group: group.into(), epoch: 2, after_tokens };
        turn.outcome.report.continued = vec![continued("b", 1), continued("c", 90)];
        let shown = turn.summary();
        let start = "a, continued on b after 1 token, continued on c after 90 tokens · prompt";
        assert!(shown.starts_with(start), "{shown}");
        assert!(shown.contains(" · 101 generated · ") && shown.ends_with(" · 10 tok/s"), "{shown}");
        turn.answering = Duration::ZERO;
        assert!(turn.summary().ends_with(" · 0 tok/s"));
    }

    #[test]
    fn totals_agree_with_their_nouns() {
        let mut totals = Totals::default();
        totals.add(&spoken(wire::Usage { prompt_tokens: 1, generated_tokens: 3, ..Default::default() }));
        assert_eq!(totals.summary(), "1 turn · 1 prompt token, 0 % reused · 3 generated");
    }
}

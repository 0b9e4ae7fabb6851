//! A turn as people see it: text as it comes, then one line of what it cost.

use std::time::Duration;

use hawser_client::{ClientError, Outcome, Sampling, Turn, TurnEvent, TurnReport, wire};
use hawser_common::clock::{Clock, Tick};

use crate::console::{count, time};

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

/// A turn that ended well, with the first token's time as this side saw it.
#[derive(Clone, Debug)]
pub struct Spoken {
    pub outcome: Outcome,
    pub first_token: Duration,
}

/// Runs a turn to its end; `show` gets each piece of text. `began` is when the turn was sent.
pub async fn speak(
    mut turn: Turn<'_>,
    clock: &Clock,
    began: Tick,
    mut show: impl FnMut(&str),
) -> Result<Spoken, ClientError> {
    let (mut placed, mut text, mut first) = (None, String::new(), None);
    while let Some(event) = turn.next().await? {
        match event {
            TurnEvent::Placed(found) => placed = Some(found),
            TurnEvent::Tokens(tokens) => {
                first.get_or_insert_with(|| clock.now().since(began));
                show(&tokens.text);
                text.push_str(&tokens.text);
            }
            TurnEvent::Finished(report) => {
                let first_token = first.unwrap_or_else(|| clock.now().since(began));
                let placed = placed.ok_or(ClientError::Protocol { what: "a turn without placement" })?;
                return Ok(Spoken { outcome: Outcome { placed, text, report }, first_token });
            }
        }
    }
    Err(ClientError::Protocol { what: "a turn without an end" })
}

impl Spoken {
    /// Owner, tokens, times; and why it ended where that is not the model's own choice.
    pub fn summary(&self) -> String {
        let TurnReport { usage, reason, .. } = &self.outcome.report;
        let ended = match reason {
            wire::FinishReason::Length => " · cut at max tokens",
            wire::FinishReason::StopString => " · at a stop text",
            wire::FinishReason::Stop | wire::FinishReason::Unspecified => "",
        };
        format!(
            "{} · prompt {} = {} reused + {} prefilled · {} generated · first token {} · {:.0} tok/s{ended}",
            self.outcome.placed.group,
            count(usage.prompt_tokens.into()),
            count(usage.reused_tokens.into()),
            count(usage.prefilled_tokens.into()),
            count(usage.generated_tokens.into()),
            time(self.first_token),
            self.outcome.report.decode_rate(),
        )
    }
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
            "{} turns · {} prompt tokens, {share} % of them reused · {} generated",
            self.turns,
            count(self.prompt),
            count(self.generated)
        )
    }
}

//! One turn of a session: typed events, and the commit of the history when the turn ends well.

use std::time::Duration;

use hawser_common::chat::{Message, Role};
use hawser_proto::v1;

use crate::error::ClientError;
use crate::frames::{Frame, FrameStream};
use crate::session::Session;

/// Where the turn runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The group that owns the session.
    pub group: String,
    pub epoch: u64,
    pub model: String,
    /// The turn carried the whole conversation, not only what is new.
    pub resent: bool,
}

/// Where a turn went on after its group was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continued {
    pub group: String,
    pub epoch: u64,
    /// Tokens of the answer that the groups before it generated.
    pub after_tokens: u32,
}

/// Tokens in order. Text is whole characters only and may be empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    pub text: String,
    pub ids: Vec<u32>,
    /// One per token, when asked for.
    pub logprobs: Vec<v1::TokenLogprob>,
}

/// How the turn ended and what it cost.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnReport {
    pub reason: v1::FinishReason,
    /// The stop string that was met, where one was.
    pub stop: Option<String>,
    /// All tokens of the turn; what is counted in rows and slots is that of the last group.
    pub usage: v1::Usage,
    /// Those of the last group.
    pub timings: v1::Timings,
    /// Where the turn went on after its group was lost, in order; empty for almost every turn.
    pub continued: Vec<Continued>,
    /// Seed that the sampler used.
    pub seed: u64,
    /// Committed turns of the session.
    pub turn: u32,
}

impl TurnReport {
    /// From arrival at the last group to its first token: queue and prefill.
    #[must_use]
    pub fn time_to_first_token(&self) -> Duration {
        Duration::from_micros(self.timings.queue_us.saturating_add(self.timings.prefill_us))
    }

    /// Tokens per second of the last group after its first token; 0 where there is no second one.
    #[must_use]
    pub fn decode_rate(&self) -> f64 {
        let before = self.continued.last().map_or(0, |last| last.after_tokens);
        let steps = self.usage.generated_tokens.saturating_sub(before).saturating_sub(1);
        if steps == 0 || self.timings.decode_us == 0 {
            return 0.0;
        }
        f64::from(steps) / Duration::from_micros(self.timings.decode_us).as_secs_f64()
    }
}

/// What happens in a turn, in this order: one `Placed`, any number of `Tokens`, one `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEvent {
    Placed(Placed),
    Tokens(Tokens),
    Finished(TurnReport),
}

/// A turn as a whole, for callers that do not stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub placed: Placed,
    pub text: String,
    pub report: TurnReport,
}

impl Outcome {
    /// The group that has the session now.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.report.continued.last().map_or(&self.placed.group, |last| &last.group)
    }
}

/// A running turn. Dropping it before `Finished` cancels it: the session stays at its last committed turn, here and
/// at the server.
#[derive(Debug)]
pub struct Turn<'s> {
    session: &'s mut Session,
    frames: FrameStream,
    /// Messages that this turn adds.
    added: Vec<Message>,
    placed: Placed,
    /// `placed` was yielded.
    announced: bool,
    text: String,
}

impl<'s> Turn<'s> {
    pub(crate) fn new(
        session: &'s mut Session,
        frames: FrameStream,
        added: Vec<Message>,
        placed: Placed,
    ) -> Self {
        Self { session, frames, added, placed, announced: false, text: String::new() }
    }

    /// What happens next; `None` after `Finished`.
    ///
    /// # Errors
    /// [`ClientError`]; the history is then what it was before the turn.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, ClientError> {
        if !self.announced {
            self.announced = true;
            return Ok(Some(TurnEvent::Placed(self.placed.clone())));
        }
        match self.frames.next().await? {
            None => Ok(None),
            Some(Frame::Placed(_)) => Err(ClientError::Protocol { what: "a second placement" }),
            Some(Frame::Chunk(chunk)) => {
                self.text.push_str(&chunk.text);
                let v1::Chunk { text, token_ids: ids, logprobs } = chunk;
                Ok(Some(TurnEvent::Tokens(Tokens { text, ids, logprobs })))
            }
            Some(Frame::Finished(finished)) => {
                let mut added = std::mem::take(&mut self.added);
                added.push(Message::text(Role::Assistant, std::mem::take(&mut self.text)));
                self.session.commit(added);
                Ok(Some(TurnEvent::Finished(report(finished))))
            }
        }
    }

    /// Waits for the end and gives the turn as a whole.
    ///
    /// # Errors
    /// As [`Turn::next`].
    pub async fn outcome(mut self) -> Result<Outcome, ClientError> {
        let mut text = self.text.clone();
        while let Some(event) = self.next().await? {
            match event {
                TurnEvent::Placed(_) => {}
                TurnEvent::Tokens(tokens) => text.push_str(&tokens.text),
                TurnEvent::Finished(report) => return Ok(Outcome { placed: self.placed, text, report }),
            }
        }
        Err(ClientError::Protocol { what: "a turn that was over already" })
    }
}

fn report(finished: v1::Finished) -> TurnReport {
    let continued = |placed: v1::Placed| Continued {
        group: placed.group,
        epoch: placed.epoch,
        after_tokens: placed.continued_tokens,
    };
    TurnReport {
        reason: finished.reason(),
        continued: finished.continued.into_iter().map(continued).collect(),
        stop: Some(finished.stop).filter(|stop| !stop.is_empty()),
        usage: finished.usage.unwrap_or_default(),
        timings: finished.timings.unwrap_or_default(),
        seed: finished.seed,
        turn: finished.turn,
    }
}

pub(crate) fn placed(wire: v1::Placed, resent: bool) -> Placed {
    Placed { group: wire.group, epoch: wire.epoch, model: wire.model, resent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_went_on_is_owned_by_its_last_group_whose_rate_counts_its_own_tokens() {
        let placed = |group: &str, continued_tokens| v1::Placed {
            group: group.into(),
            continued_tokens,
            ..Default::default()
        };
        let finished = v1::Finished {
            usage: Some(v1::Usage { generated_tokens: 101, ..Default::default() }),
            timings: Some(v1::Timings { decode_us: 1_000_000, ..Default::default() }),
            ..Default::default()
        };
        let outcome = |continued| Outcome {
            placed: super::placed(placed("a", 0), false),
            text: String::new(),
            report: report(v1::Finished { continued, ..finished.clone() }),
        };
        let plain = outcome(Vec::new());
        assert_eq!((plain.owner(), plain.report.decode_rate()), ("a", 100.0));
        let went_on = outcome(vec![placed("b", 40), placed("c", 80)]);
        assert_eq!((went_on.owner(), went_on.report.decode_rate()), ("c", 20.0));
    }
}

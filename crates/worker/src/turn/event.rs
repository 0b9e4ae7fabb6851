//! What the driver tells a turn's reader.

use std::time::Duration;

use hawser_common::clock::Tick;

use super::error::TurnError;
use super::generation::Generation;
use crate::scheduler::Kept;

/// In order: any number of `Token` and `Text`, then exactly one of the others.
#[derive(Debug)]
pub enum TurnEvent {
    Token(TokenPiece),
    /// Text of tokens that another group has delivered.
    Text(String),
    Finished(Box<TurnEnd>),
    Failed(TurnError),
}

/// One generated token and the text that became certain with it: whole characters that no stop string can take back.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenPiece {
    pub token: u32,
    pub text: String,
    /// Natural logarithm, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens with theirs.
    pub top: Vec<(u32, f32)>,
}

/// Why generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// An end token.
    Stop,
    /// This stop string.
    StopString(String),
    /// `max_tokens`, the context or the pool.
    Length,
}

/// Token counts of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    /// Prompt tokens that were not prefilled.
    pub reused: usize,
    /// Of them, evicted before.
    pub dead: usize,
    /// Of them, computed for another session.
    pub shared: usize,
    pub generated: usize,
    pub kept: Kept,
}

/// The end of a turn that went well.
#[derive(Debug)]
pub struct TurnEnd {
    pub finish: Finish,
    /// Generated tokens, the end token included.
    pub tokens: Vec<u32>,
    /// All text of the turn, as streamed.
    pub text: String,
    pub usage: Usage,
    pub seed: u64,
    pub queued: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Scoring and evicting.
    pub pruning: Duration,
    /// Steps that computed evicted rows again.
    pub refilling: Duration,
    pub timeline: Timeline,
}

/// When the parts of a turn happened, by the driver's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// In the scheduler.
    pub arrived: Tick,
    pub first_token: Tick,
    pub ended: Tick,
    /// The first ones, where there are very many.
    pub prunes: Vec<PruneTime>,
}

/// One prune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneTime {
    pub from: Tick,
    pub to: Tick,
    pub evicted: usize,
    pub revived: usize,
}

impl TurnEnd {
    /// The end of an answer of which another group had generated every token: nothing ran here.
    pub(crate) fn of_begun(finish: Finish, prompt: usize, generation: Generation, now: Tick) -> Self {
        let seed = generation.seed();
        let (tokens, text) = generation.into_output();
        let usage = Usage { prompt, reused: prompt, generated: tokens.len(), ..Usage::default() };
        let none = Duration::ZERO;
        let timeline = Timeline { arrived: now, first_token: now, ended: now, prunes: Vec::new() };
        let (queued, prefill, decode, pruning, refilling) = (none, none, none, none, none);
        Self { finish, tokens, text, usage, seed, queued, prefill, decode, pruning, refilling, timeline }
    }
}

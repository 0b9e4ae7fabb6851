//! What streams count, and how it is added up.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_common::clock::Tick;

use super::exchange::Exchange;

/// What a turn was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A session's first.
    First,
    /// Of a session that its owner holds.
    Warm,
    /// Sent whole, since the session was lost or a try had failed.
    Resent,
}

/// Which way a turn went to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Router,
    /// To the leader itself.
    Straight,
    /// To the leader, through something that passes bytes on.
    Passing,
    /// To the leader, through something that passes calls on.
    Calling,
}

impl Way {
    /// Ways of the warm turns of a session, in turn.
    pub fn of(turn: u32) -> Self {
        match turn % 6 {
            1 => Self::Straight,
            3 => Self::Passing,
            5 => Self::Calling,
            _ => Self::Router,
        }
    }
}

/// Counts of turns. Times are in microseconds.
#[derive(Debug, Default)]
pub struct Tally {
    pub turns: u64,
    pub frames: u64,
    /// From sending to the first token, of turns through a router.
    pub first_token: Vec<u32>,
    /// Of warm turns, the part of that in which the leader was not working on them: through a router, past it, and past it
    /// through something that passes bytes or calls on.
    pub overhead_routed: Vec<u32>,
    pub overhead_direct: Vec<u32>,
    pub overhead_passing: Vec<u32>,
    pub overhead_calling: Vec<u32>,
    pub groups: BTreeMap<String, u64>,
    /// Later turns on the owner of the turn before, and on another.
    pub stayed: u64,
    pub moved: u64,
    /// Turns refused since the session was lost: declared, and sent again whole.
    pub lost: u64,
    pub errors: BTreeMap<String, u64>,
    pub given_up: u64,
    pub prompt_tokens: u64,
    pub reused_tokens: u64,
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Tally {
    /// Counts a turn that was sent at `sent`; `same` says whether the owner of the one before served it.
    pub fn turn(&mut self, (kind, way): (Kind, Way), same: Option<bool>, sent: Tick, exchange: &Exchange) {
        self.turns += 1;
        if way == Way::Router {
            self.frames += exchange.frames;
        }
        *self.groups.entry(exchange.group.clone()).or_default() += 1;
        self.stayed += u64::from(same == Some(true));
        self.moved += u64::from(same == Some(false));
        let first = exchange.first.unwrap_or(exchange.ended).since(sent);
        let timings = exchange.end.timings.unwrap_or_default();
        let working = Duration::from_micros(timings.queue_us + timings.prefill_us);
        if way == Way::Router {
            self.first_token.push(micros(first));
        }
        let overhead = match way {
            Way::Router => &mut self.overhead_routed,
            Way::Straight => &mut self.overhead_direct,
            Way::Passing => &mut self.overhead_passing,
            Way::Calling => &mut self.overhead_calling,
        };
        if kind == Kind::Warm {
            overhead.push(micros(first.saturating_sub(working)));
        }
        let usage = exchange.end.usage.unwrap_or_default();
        self.prompt_tokens += u64::from(usage.prompt_tokens);
        self.reused_tokens += u64::from(usage.reused_tokens);
    }

    pub fn error(&mut self, kind: &str) {
        *self.errors.entry(kind.to_owned()).or_default() += 1;
    }

    /// Adds another stream's.
    pub fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.frames += other.frames;
        self.first_token.extend(other.first_token);
        self.overhead_routed.extend(other.overhead_routed);
        self.overhead_direct.extend(other.overhead_direct);
        self.overhead_passing.extend(other.overhead_passing);
        self.overhead_calling.extend(other.overhead_calling);
        for (group, turns) in other.groups {
            *self.groups.entry(group).or_default() += turns;
        }
        self.stayed += other.stayed;
        self.moved += other.moved;
        self.lost += other.lost;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.given_up += other.given_up;
        self.prompt_tokens += other.prompt_tokens;
        self.reused_tokens += other.reused_tokens;
    }
}

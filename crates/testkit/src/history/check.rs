//! What must hold in every history. Pure: a history in, violations out.
//!
//! - A session has at most one owner at any time.
//! - A token leaves a worker only while the store says that the worker owns the session, under the epoch that it was
//!   routed by. So no token of an old owner follows the first one of the new owner.
//! - A turn is served on the history that its client knows, and on no other.
//! - A client reads the tokens of a turn in order, each once; every turn ends exactly once; one that ends well is
//!   whole.
//! - Once nothing is broken any more, every session gets a turn through within a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_common::group::Owner;

use super::event::{End, Entry, Event, TurnId};

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Tokens of every turn that ends well.
    pub tokens: u32,
    /// How long after a store that forgot everything its old owners may still act: they have yet to learn it.
    pub after_loss: Duration,
    /// Longest from the end of all faults to a turn of every session that ends well.
    pub recovery: Duration,
}

/// Something that must never happen, with when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: Tick,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3} s: {}", self.at.0.as_secs_f64(), self.what)
    }
}

#[derive(Debug)]
struct Turn {
    session: SessionKey,
    history: Vec<TurnId>,
    received: u32,
    ended: bool,
}

#[derive(Debug)]
struct Checker {
    rules: Rules,
    owners: BTreeMap<SessionKey, Owner>,
    turns: BTreeMap<TurnId, Turn>,
    lost_at: Option<Tick>,
    healed_at: Option<Tick>,
    /// Sessions that have asked for something, and when a turn first ended well after the healing.
    recovered: BTreeMap<SessionKey, Option<Tick>>,
    violations: Vec<Violation>,
}

/// Everything that is wrong with a history; nothing for one that is right.
#[must_use]
pub fn check(rules: Rules, history: &[Entry]) -> Vec<Violation> {
    let mut checker = Checker {
        rules,
        owners: BTreeMap::new(),
        turns: BTreeMap::new(),
        lost_at: None,
        healed_at: None,
        recovered: BTreeMap::new(),
        violations: Vec::new(),
    };
    for entry in history {
        checker.entry(entry);
    }
    checker.end(history.last().map_or_else(Tick::default, |entry| entry.at));
    checker.violations
}

impl Checker {
    fn wrong(&mut self, at: Tick, what: String) {
        self.violations.push(Violation { at, what });
    }

    fn entry(&mut self, Entry { at, event }: &Entry) {
        let at = *at;
        match event {
            Event::Asked { session, turn, history } => self.asked(at, session, turn, history),
            Event::Placed { turn, .. } => {
                if self.running(at, turn, "is placed").is_some_and(|turn| turn.received > 0) {
                    self.wrong(at, format!("{turn} is placed again after its first token"));
                }
            }
            Event::Received { turn, tokens } => self.received(at, turn, tokens),
            Event::Ended { turn, end } => self.ended(at, turn, end),
            Event::Served { session, turn, owner, routed, history } => {
                if *routed != owner.epoch.0 {
                    self.wrong(at, format!("{turn} was routed by epoch {routed} and is served by {owner:?}"));
                }
                let known = self.turns.get(turn).map(|turn| turn.history.clone()).unwrap_or_default();
                if known != *history {
                    self.wrong(
                        at,
                        format!("{turn} of {session:?} is served on {history:?}; its client knows {known:?}"),
                    );
                }
            }
            Event::Sent { session, turn, owner, token } => self.sent(at, session, (turn, *token), owner),
            Event::Claimed { session, owner } => {
                if let Some(before) = self.owners.insert(session.clone(), owner.clone()) {
                    self.wrong(at, format!("{session:?} goes to {owner:?} while {before:?} owns it"));
                }
            }
            Event::Released { session } => {
                if self.owners.remove(session).is_none() {
                    self.wrong(at, format!("{session:?} is taken from nobody"));
                }
            }
            Event::StoreLost => {
                self.owners.clear();
                self.lost_at = Some(at);
            }
            Event::Healed => self.healed_at = Some(at),
            Event::Registered { .. } | Event::Gone { .. } | Event::Fenced { .. } | Event::Fault { .. } => {}
        }
    }

    fn asked(&mut self, at: Tick, session: &SessionKey, turn: &TurnId, history: &[TurnId]) {
        let new = Turn { session: session.clone(), history: history.to_vec(), received: 0, ended: false };
        self.recovered.entry(session.clone()).or_default();
        if self.turns.insert(turn.clone(), new).is_some() {
            self.wrong(at, format!("{turn} is asked for twice; the test is wrong"));
        }
    }

    /// A turn that has not ended; anything else is a violation.
    fn running(&mut self, at: Tick, turn: &TurnId, what: &str) -> Option<&mut Turn> {
        let over = match self.turns.get(turn) {
            None => Some("before it is asked for"),
            Some(turn) if turn.ended => Some("after its end"),
            Some(_) => None,
        };
        if let Some(when) = over {
            self.wrong(at, format!("{turn} {what} {when}"));
            return None;
        }
        self.turns.get_mut(turn)
    }

    fn received(&mut self, at: Tick, id: &TurnId, tokens: &[u32]) {
        let Some(turn) = self.running(at, id, "delivers a token") else { return };
        let expected: Vec<u32> = (turn.received..).take(tokens.len()).collect();
        turn.received += u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if expected != tokens {
            self.wrong(at, format!("{id} delivers {tokens:?}; next come {expected:?}"));
        }
    }

    fn ended(&mut self, at: Tick, id: &TurnId, end: &End) {
        let expected = self.rules.tokens;
        let Some(turn) = self.running(at, id, "ends") else { return };
        turn.ended = true;
        let (received, session) = (turn.received, turn.session.clone());
        if let End::Finished { tokens } = end {
            if received != *tokens || received != expected {
                self.wrong(
                    at,
                    format!(
                        "{id} ends well with {received} tokens; its result says {tokens}, whole is {expected}"
                    ),
                );
            }
            if self.healed_at.is_some_and(|healed| healed <= at) {
                self.recovered.entry(session).or_default().get_or_insert(at);
            }
        }
    }

    fn sent(&mut self, at: Tick, session: &SessionKey, (turn, token): (&TurnId, u32), owner: &Owner) {
        let holder = self.owners.get(session);
        if holder == Some(owner) {
            return;
        }
        if self.lost_at.is_some_and(|lost| at.since(lost) <= self.rules.after_loss) {
            return;
        }
        let what = format!("{owner:?} sends token {token} of {turn}; {session:?} is owned by {holder:?}");
        self.wrong(at, what);
    }

    fn end(&mut self, last: Tick) {
        let open: Vec<TurnId> =
            self.turns.iter().filter(|(_, turn)| !turn.ended).map(|(id, _)| id.clone()).collect();
        for turn in open {
            self.wrong(last, format!("{turn} never ends"));
        }
        let Some(healed) = self.healed_at else { return };
        let bound = self.rules.recovery;
        let late: BTreeSet<SessionKey> = self
            .recovered
            .iter()
            .filter(|(_, at)| at.is_none_or(|at| at.since(healed) > bound))
            .map(|(session, _)| session.clone())
            .collect();
        for session in late {
            self.wrong(
                last,
                format!("no turn of {session:?} ends well within {bound:?} after the last fault"),
            );
        }
    }
}

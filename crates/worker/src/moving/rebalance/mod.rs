//! Whether a session of a group that is pressed is better off at another group of its model, and which. Pure; time is an
//! argument.
//!
//! The group that has the sessions proposes, from its own exact state and what others have published; the group that is
//! to take one accepts or refuses, from its own exact state. Promises:
//! - a move is proposed only where what it is expected to save is more than [`Options::gain_factor`] times what it costs;
//! - after every accepted move the target is less loaded than the source by [`MARGIN`] at least, so that the loads come
//!   closer with every move, and moves come to an end;
//! - a session that came stays for [`Options::session_stay`]; a group that took one gives none, and one that gave one
//!   takes none, for [`Options::group_rest`].
//!
//! Never moves anything.

mod load;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{GroupId, SessionKey};
use thiserror::Error;

use load::Calls;
pub use load::{FULL, HORIZON, Load, Share, use_probability};

/// How much less loaded the target of a move is after it than the source is.
pub const MARGIN: f64 = 0.1;
/// Turns that wait, on average, from which on a group looks for others.
const WAITING: f64 = 0.5;
/// How long a move counts on top of what its target publishes: a capacity is up to a second old when it is published,
/// and takes a moment to be heard.
const ON_THE_WAY: Duration = Duration::from_secs(3);
/// How long a group is passed over that refused.
const SHUNNED: Duration = Duration::from_secs(10);
/// A session that was used so lately is in the middle of something.
const IN_USE: Duration = Duration::from_millis(200);
/// What a move takes whatever its size: a connection, a few messages, a release and a claim.
const MOVE_S: f64 = 0.01;
/// Bytes that a token takes beside its row: ids, marks, text.
const TOKEN_BYTES: f64 = 16.0;

/// Bounds, as configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// A session that came is not given away for this long.
    pub session_stay: Duration,
    /// A group that took a session gives none away, and one that gave one takes none, for this long.
    pub group_rest: Duration,
    /// What a move saves is at least so many times what it costs.
    pub gain_factor: f64,
}

/// A session, as far as moving it is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub key: SessionKey,
    /// Rows that it has.
    pub rows: usize,
    /// Rows that its next turn needs, had or computed again.
    pub needs: usize,
    /// Time since its last turn.
    pub idle: Duration,
    /// Time since it came from another group; `None`: it did not.
    pub here: Option<Duration>,
    /// A turn of it runs: its rows are among those of running turns.
    pub busy: bool,
}

/// How fast things go here, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Mean time of a turn, without its wait.
    pub turn_s: f64,
    /// To compute a row of a prompt; zero where none was computed yet.
    pub row_s: f64,
    /// Between groups.
    pub bytes_per_s: f64,
    /// Of one row as it travels.
    pub row_bytes: f64,
}

/// The group's own state, exact.
#[derive(Clone, Debug)]
pub struct Own {
    pub capacity: Capacity,
    /// Turns that may run at once.
    pub places: usize,
    pub sessions: Vec<Candidate>,
}

/// What the group that is to take a session is told, to decide by its own state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Level of the source without the session.
    pub level: f64,
    pub share: Share,
}

/// A move that is worth it.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub session: SessionKey,
    pub target: GroupId,
    pub terms: Terms,
    /// Seconds that are expected to be saved.
    pub gain_s: f64,
    /// Seconds that the move is expected to take.
    pub cost_s: f64,
}

/// Why nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stay {
    #[error("nothing waits here, and the pool has room")]
    Calm,
    #[error("the group took a session not long ago")]
    Resting,
    #[error("no other group of this model may take one")]
    Alone,
    #[error("no move would save more than it costs")]
    NoGain,
}

/// Why a session that is to come for the sake of balance is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unbalanced {
    #[error("the group gave a session away not long ago")]
    Resting,
    #[error("the group would be as loaded as the one that the session comes from")]
    Loaded,
}

/// What a group remembers of its moves and of others.
#[derive(Debug)]
pub struct Rebalancer {
    options: Options,
    calls: HashMap<GroupId, Calls>,
    own_calls: Option<Calls>,
    on_the_way: Vec<(GroupId, Tick, Share)>,
    shunned: HashMap<GroupId, Tick>,
    gave: Option<Tick>,
    took: Option<Tick>,
}

impl Rebalancer {
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            calls: HashMap::new(),
            own_calls: None,
            on_the_way: Vec::new(),
            shunned: HashMap::new(),
            gave: None,
            took: None,
        }
    }

    /// Takes a sample of the group's own turns, and says whether to look further: whether turns wait, or the pool is
    /// nearly full of rows that somebody needs or may need.
    pub fn sample(&mut self, capacity: &Capacity) -> bool {
        let newest = Calls::of(capacity.running, capacity.queued);
        self.own_calls.get_or_insert(newest).sample(newest);
        let waits = self.own_calls.is_some_and(|calls| calls.queued >= WAITING);
        let held = capacity.slots_total.saturating_sub(capacity.slots_free);
        waits || held as f64 > FULL * capacity.slots_total as f64
    }

    /// Takes a sample of other groups' turns; those that are not named are forgotten.
    pub fn sample_others(&mut self, others: &[GroupRecord], now: Tick) {
        let before = std::mem::take(&mut self.calls);
        self.calls = others
            .iter()
            .map(|group| {
                let newest = Calls::of(group.capacity.running, group.capacity.queued);
                let mut calls = before.get(&group.id).copied().unwrap_or(newest);
                calls.sample(newest);
                (group.id.clone(), calls)
            })
            .collect();
        self.on_the_way.retain(|(_, at, _)| now.since(*at) < ON_THE_WAY);
        self.shunned.retain(|_, at| now.since(*at) < SHUNNED);
    }

    /// What the group carries itself.
    #[must_use]
    pub fn own_load(&self, own: &Own) -> Load {
        let capacity = &own.capacity;
        let idle = own.sessions.iter().filter(|session| !session.busy);
        let expected: f64 = idle.map(|session| use_probability(session.idle) * session.needs as f64).sum();
        let calls = self.own_calls.unwrap_or_else(|| Calls::of(capacity.running, capacity.queued));
        Load {
            rows: capacity.slots_live() as f64 + expected,
            calls: calls.all(),
            slots: capacity.slots_total as f64,
            places: own.places as f64,
        }
    }

    /// The one session that is to move now, and where to.
    ///
    /// # Errors
    /// [`Stay`] says why none is.
    pub fn decide(
        &self,
        own: &Own,
        others: &[GroupRecord],
        speeds: &Speeds,
        now: Tick,
    ) -> Result<Proposal, Stay> {
        if rests(self.took, self.options.group_rest, now) {
            return Err(Stay::Resting);
        }
        let (load, calls) = (self.own_load(own), self.own_calls.unwrap_or_default());
        if load.overflow() == 0.0 && calls.queued < WAITING {
            return Err(Stay::Calm);
        }
        let (target, there) = self.least_loaded(others, own.places).ok_or(Stay::Alone)?;
        let there_calls = self.calls.get(&target.id).copied().unwrap_or_default();
        let uses: f64 = own.sessions.iter().map(|session| use_probability(session.idle)).sum();
        let weigh = |session: &Candidate| {
            let used = use_probability(session.idle);
            let share = Share { rows: used * session.needs as f64, calls: load.calls * used / uses.max(1.0) };
            let terms = Terms { level: load.without(share).level(), share };
            let is_better = there.with(share).level() + MARGIN <= terms.level;
            // Rows that are not given up here, less those that are given up there for it.
            let relief = share.rows.min(load.overflow());
            let harm = there.with(share).overflow() - there.overflow();
            let waits = calls.wait_s(0.0, speeds.turn_s) - there_calls.wait_s(share.calls, speeds.turn_s);
            let gain_s = (relief - harm) * speeds.row_s + used * waits;
            let bytes = session.rows as f64 * speeds.row_bytes + session.needs as f64 * TOKEN_BYTES;
            let cost_s = MOVE_S + bytes / speeds.bytes_per_s.max(1.0);
            let (session, target) = (session.key.clone(), target.id.clone());
            let is_worth = is_better && gain_s > self.options.gain_factor * cost_s;
            is_worth.then_some(Proposal { session, target, terms, gain_s, cost_s })
        };
        let net = |proposal: &Proposal| proposal.gain_s - self.options.gain_factor * proposal.cost_s;
        let better = |a: Proposal, b: Proposal| if net(&b) > net(&a) { b } else { a };
        let movable = own.sessions.iter().filter(|session| self.may_leave(session));
        movable.filter_map(weigh).reduce(better).ok_or(Stay::NoGain)
    }

    fn may_leave(&self, session: &Candidate) -> bool {
        let stays = session.here.is_some_and(|here| here < self.options.session_stay);
        !session.busy && !stays && session.idle >= IN_USE && session.needs > 0
    }

    /// The group that carries least, as far as is known, what is on its way there included.
    fn least_loaded<'a>(&self, others: &'a [GroupRecord], places: usize) -> Option<(&'a GroupRecord, Load)> {
        let may = others.iter().filter(|group| !group.draining && !self.shunned.contains_key(&group.id));
        let loads = may.map(|group| {
            let calls = self.calls.get(&group.id).copied().unwrap_or_default();
            let load = Load::of_record(group, calls.all(), places as f64);
            let coming = self.on_the_way.iter().filter(|(id, ..)| *id == group.id);
            (group, coming.fold(load, |load, (.., share)| load.with(*share)))
        });
        loads.min_by(|a, b| a.1.level().total_cmp(&b.1.level()).then_with(|| a.0.id.cmp(&b.0.id)))
    }

    /// Whether the group takes a session on these terms.
    ///
    /// # Errors
    /// [`Unbalanced`] says why not.
    pub fn accept(&self, own: &Own, terms: &Terms, now: Tick) -> Result<(), Unbalanced> {
        if rests(self.gave, self.options.group_rest, now) {
            return Err(Unbalanced::Resting);
        }
        let after = self.own_load(own).with(terms.share).level();
        // Not the other way round: what is no number is refused too.
        if after + MARGIN <= terms.level { Ok(()) } else { Err(Unbalanced::Loaded) }
    }

    /// The session has moved. Its turns are counted where it went before a sample shows them.
    pub fn gave(&mut self, proposal: &Proposal, now: Tick) {
        let share = proposal.terms.share;
        self.gave = Some(now);
        self.on_the_way.push((proposal.target.clone(), now, share));
        if let Some(calls) = &mut self.own_calls {
            calls.shift(-share.calls);
        }
    }

    /// A session has come; for the sake of balance, on these terms.
    pub fn took(&mut self, terms: Option<&Terms>, now: Tick) {
        self.took = Some(now);
        if let (Some(calls), Some(terms)) = (&mut self.own_calls, terms) {
            calls.shift(terms.share.calls);
        }
    }

    /// The move to this group came to nothing, for a reason that lies there.
    pub fn refused(&mut self, target: &GroupId, now: Tick) {
        self.shunned.insert(target.clone(), now);
    }
}

fn rests(since: Option<Tick>, rest: Duration, now: Tick) -> bool {
    since.is_some_and(|since| now.since(since) < rest)
}

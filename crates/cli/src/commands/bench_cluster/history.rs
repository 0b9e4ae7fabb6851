//! Who owned what, as the stores of the groups saw it, and whether a session ever had two owners.
//!
//! Pure; time is an argument. Promises to call something a double owner only where it certainly is one: a lease counts
//! from the moment it was asked for, and a claim as long as nobody has begun to end it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hawser_common::clock::Tick;
use hawser_common::{GroupId, SessionKey};
use hawser_placement::LeaseId;

/// Offences that are told in words; more are counted only.
const MAX_TOLD: usize = 8;

#[derive(Clone, Debug)]
struct Claim {
    lease: LeaseId,
    group: GroupId,
    from: Tick,
    /// When someone began to end it.
    until: Option<Tick>,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<SessionKey, Vec<Claim>>,
    /// Until when a lease certainly holds.
    leases: HashMap<LeaseId, Tick>,
    doubles: u64,
    strangers: u64,
    told: Vec<String>,
}

/// What was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Claims that were won while another lease certainly held the session.
    pub doubles: u64,
    /// Turns that a group served without ever holding the session's claim meanwhile.
    pub strangers: u64,
    pub told: Vec<String>,
}

/// The history. Shared by all groups of a run.
#[derive(Debug, Default)]
pub struct History(Mutex<State>);

impl History {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lease was granted or renewed: it holds at least until then.
    pub fn holds(&self, lease: LeaseId, until: Tick) {
        self.with(|state| {
            let held = state.leases.entry(lease).or_default();
            *held = (*held).max(until);
        });
    }

    /// Someone begins to end the lease, or to register under it again.
    pub fn ending(&self, lease: LeaseId, now: Tick) {
        self.with(|state| {
            state.leases.remove(&lease);
            let open = state.claims.values_mut().flatten().filter(|claim| claim.lease == lease);
            open.for_each(|claim| claim.end(now));
        });
    }

    /// A claim that was asked for at `from` was won; now is `now`.
    pub fn claimed(&self, (lease, group): (LeaseId, &GroupId), session: &SessionKey, from: Tick, now: Tick) {
        self.with(|state| {
            let State { claims, leases, .. } = state;
            let claims = claims.entry(session.clone()).or_default();
            let holds = |claim: &&Claim| claim.until.is_none() && leases.get(&claim.lease) > Some(&now);
            let mut held_already = false;
            let mut other = None;
            for claim in claims.iter().filter(holds) {
                held_already |= claim.lease == lease;
                if claim.lease != lease {
                    other = Some(claim.group.clone());
                }
            }
            if !held_already {
                claims.push(Claim { lease, group: group.clone(), from, until: None });
            }
            if let Some(other) = other {
                state.doubles += 1;
                state.tell(format!("{} was given to {group} while {other} held it", session.session));
            }
        });
    }

    /// Someone begins to end claims.
    pub fn releasing(&self, lease: LeaseId, sessions: &[SessionKey], now: Tick) {
        self.with(|state| {
            for session in sessions {
                let claims = state.claims.get_mut(session).into_iter().flatten();
                claims.filter(|claim| claim.lease == lease).for_each(|claim| claim.end(now));
            }
        });
    }

    /// A turn that was sent at `sent` was placed on a group.
    pub fn served(&self, session: &SessionKey, group: &str, sent: Tick, now: Tick) {
        self.with(|state| {
            let held = |claim: &Claim| {
                claim.group.as_str() == group
                    && claim.from <= now
                    && claim.until.is_none_or(|end| end >= sent)
            };
            if !state.claims.get(session).is_some_and(|claims| claims.iter().any(held)) {
                state.strangers += 1;
                state.tell(format!("{} was served by {group}, which does not hold it", session.session));
            }
        });
    }

    pub fn verdict(&self) -> Verdict {
        self.with(|state| Verdict {
            doubles: state.doubles,
            strangers: state.strangers,
            told: state.told.clone(),
        })
    }
}

impl State {
    fn tell(&mut self, text: String) {
        if self.told.len() < MAX_TOLD {
            self.told.push(text);
        }
    }
}

impl Claim {
    fn end(&mut self, now: Tick) {
        self.until.get_or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hawser_common::{SessionId, TenantId};

    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(Duration::from_secs(seconds))
    }

    fn key() -> SessionKey {
        SessionKey { tenant: TenantId::single(), session: SessionId::parse("s").unwrap() }
    }

    fn history() -> (History, [(LeaseId, GroupId); 2]) {
        let history = History::default();
        let owners = [1, 2].map(|n| (LeaseId(n), GroupId::parse(&format!("g{n}")).unwrap()));
        owners.iter().for_each(|(lease, _)| history.holds(*lease, at(10)));
        (history, owners)
    }

    #[test]
    fn two_owners_at_once_are_noticed() {
        let (history, [(a, ga), (b, gb)]) = history();
        history.claimed((a, &ga), &key(), at(1), at(2));
        history.claimed((a, &ga), &key(), at(2), at(3));
        assert_eq!(history.verdict().doubles, 0, "claimed again by the same");
        history.claimed((b, &gb), &key(), at(4), at(5));
        assert_eq!(history.verdict().doubles, 1);
        assert!(history.verdict().told[0].contains("given to g2 while g1"));
    }

    #[test]
    fn an_owner_after_another_is_none_too_many() {
        for end in 0..3 {
            let (history, [(a, ga), (b, gb)]) = history();
            history.claimed((a, &ga), &key(), at(1), at(2));
            match end {
                0 => history.releasing(a, &[key()], at(3)),
                1 => history.ending(a, at(3)),
                // It ran out by itself.
                _ => history.holds(b, at(30)),
            }
            let now = if end == 2 { at(11) } else { at(4) };
            history.claimed((b, &gb), &key(), now, now);
            assert_eq!(history.verdict().doubles, 0, "{end}");
        }
    }

    #[test]
    fn a_group_that_never_held_the_session_is_a_stranger() {
        let (history, [(a, ga), (b, gb)]) = history();
        history.claimed((a, &ga), &key(), at(1), at(2));
        history.served(&key(), "g1", at(1), at(2));
        history.releasing(a, &[key()], at(5));
        history.served(&key(), "g1", at(4), at(6));
        assert_eq!(history.verdict().strangers, 0, "its turn was on the way when it was given up");
        history.claimed((b, &gb), &key(), at(7), at(8));
        history.served(&key(), "g1", at(6), at(9));
        assert_eq!(history.verdict().strangers, 1);
    }
}

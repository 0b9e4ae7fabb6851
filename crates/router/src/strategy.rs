//! Ways to place calls that nobody owns, to compare the router's own with. Pure; set by benchmarks only.

use std::hash::{Hash as _, Hasher as _};

use hawser_common::clock::Tick;
use hawser_common::{GroupId, SessionKey};
use rand::Rng;

use crate::balance::{self, SessionsAt};
use crate::fleet::Member;

/// How a call without an owner finds its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The router's own: see `balance`.
    #[default]
    Balanced,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest calls of this router.
    LeastLoaded,
    /// By a hash of the session alone.
    Hashed,
}

/// What a choice is made from.
pub(crate) struct Choice<'a> {
    /// All may take the call.
    pub(crate) candidates: Vec<&'a Member>,
    /// Groups that hold rows which the call may share.
    pub(crate) near: &'a [GroupId],
    /// How many sessions each group owns.
    pub(crate) sessions: &'a SessionsAt<'a>,
    pub(crate) session: Option<&'a SessionKey>,
    /// Choices before this one.
    pub(crate) turn: u64,
    pub(crate) now: Tick,
}

impl Strategy {
    pub(crate) fn choose<'a>(self, choice: Choice<'a>, rng: &mut impl Rng) -> Option<&'a Member> {
        let Choice { mut candidates, near, sessions, session, turn, now } = choice;
        if self == Self::Balanced {
            return balance::choose(candidates, (near, sessions), now, rng);
        }
        candidates.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        let at = |number: u64| {
            let count = u64::try_from(candidates.len()).ok().filter(|&count| count > 0)?;
            candidates.get(usize::try_from(number % count).ok()?).copied()
        };
        match (self, session) {
            (Self::LeastLoaded, _) => candidates.iter().copied().min_by_key(|member| member.load.count()),
            (Self::Hashed, Some(session)) => {
                let mut hasher = std::hash::DefaultHasher::new();
                session.hash(&mut hasher);
                at(hasher.finish())
            }
            (Self::Balanced | Self::RoundRobin | Self::Hashed, _) => at(turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hawser_common::{SessionId, TenantId};
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;
    use crate::balance::tests::record;
    use crate::fleet::{Fleet, InFlight};

    fn chosen(strategy: Strategy, fleet: &Fleet, session: Option<&SessionKey>, turn: u64) -> String {
        let candidates = fleet.members().collect();
        let choice = Choice { candidates, near: &[], sessions: &|_| 0, session, turn, now: Tick::default() };
        strategy.choose(choice, &mut StdRng::seed_from_u64(1)).unwrap().record.id.to_string()
    }

    #[test]
    fn each_strategy_goes_by_what_it_says() {
        let mut fleet = Fleet::default();
        for id in ["a", "b", "c"] {
            fleet.changed(record(id, 500, 0), Tick::default());
        }
        let turns: Vec<String> =
            (0..4).map(|turn| chosen(Strategy::RoundRobin, &fleet, None, turn)).collect();
        assert_eq!(turns, ["a", "b", "c", "a"]);
        let busy = ["a", "b"].map(|id| Arc::clone(&fleet.member(&record(id, 0, 0).id).unwrap().load));
        let _calls = busy.map(InFlight::enter);
        assert_eq!(chosen(Strategy::LeastLoaded, &fleet, None, 0), "c");
        let key =
            |id: String| SessionKey { tenant: TenantId::single(), session: SessionId::parse(&id).unwrap() };
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..100 {
            let key = key(format!("s-{n}"));
            let group = chosen(Strategy::Hashed, &fleet, Some(&key), n);
            assert_eq!(chosen(Strategy::Hashed, &fleet, Some(&key), n + 1), group);
            seen.insert(group);
        }
        assert_eq!(seen.len(), 3);
    }
}

//! How many sessions a tenant may open: what the store is known to hold, and what this router has opened since. Pure;
//! time is an argument.
//!
//! The count of claims comes from the store's watch, a moment late. Sessions that were opened here and are not in it
//! yet are counted besides, so that one router alone is exact. Other routers do not see them: near its quota a tenant
//! may therefore open no more than [`UNSEEN`] sessions at each router that the store has not yet shown to all, and `n`
//! routers together overshoot a quota by at most `(n - 1) * UNSEEN`, for up to [`ROUTERS`] of them.

use std::collections::HashMap;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::{SessionId, TenantId};

/// Sessions of a tenant near its quota that may be on their way through the store at one router.
pub(crate) const UNSEEN: u64 = 64;
/// Routers for which the bound on the overshoot is meant.
const ROUTERS: u64 = 16;
/// How long a session that was opened may be on its way through the store. One that is not seen by then was refused by
/// the worker, or closed again.
const SETTLES_IN: Duration = Duration::from_secs(2);

/// Whether one more session may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is counted now.
    Taken,
    /// Once the store has shown those before it.
    Later,
    Full,
}

/// What is known about a tenant's sessions.
pub(crate) struct Held<'a> {
    /// Sessions that the store holds.
    pub(crate) count: u64,
    /// Whether the store holds this one.
    pub(crate) knows: &'a dyn Fn(&SessionId) -> bool,
}

/// Sessions that were opened here and not seen in the store yet. Bounded: by the quotas, and in time.
#[derive(Debug, Default)]
pub(crate) struct Openings(HashMap<TenantId, Unseen>);

/// One tenant's. Those that the store has shown meanwhile go when room is short or twice as many are held as the last
/// time: looking for them asks about each one, and is not to be paid by every session that is opened.
#[derive(Debug, Default)]
struct Unseen {
    opened: HashMap<SessionId, Tick>,
    /// How many the last sweep left.
    left: usize,
}

impl Unseen {
    fn is_due(&self) -> bool {
        self.opened.len() as u64 >= UNSEEN.max(2 * self.left as u64)
    }

    fn sweep(&mut self, held: &Held<'_>, now: Tick) {
        self.opened.retain(|session, opened| now.since(*opened) < SETTLES_IN && !(held.knows)(session));
        self.left = self.opened.len();
    }

    fn room(&self, held: &Held<'_>, max_sessions: u64) -> Room {
        room(self.opened.len() as u64, held.count, max_sessions)
    }
}

impl Openings {
    /// Counts `session`, which the store does not hold, unless the tenant has no room.
    pub(crate) fn open(
        &mut self,
        (tenant, session): (&TenantId, &SessionId),
        held: &Held<'_>,
        max_sessions: u64,
        now: Tick,
    ) -> Room {
        let unseen = self.0.entry(tenant.clone()).or_default();
        if unseen.is_due() || unseen.room(held, max_sessions) != Room::Taken {
            unseen.sweep(held, now);
        }
        let room = unseen.room(held, max_sessions);
        // A second call of the same session is not a second session.
        if room == Room::Taken || unseen.opened.contains_key(session) {
            unseen.opened.insert(session.clone(), now);
            return Room::Taken;
        }
        if unseen.opened.is_empty() {
            self.0.remove(tenant);
        }
        room
    }

    /// The session was not opened after all.
    pub(crate) fn failed(&mut self, tenant: &TenantId, session: &SessionId) {
        if let Some(unseen) = self.0.get_mut(tenant) {
            unseen.opened.remove(session);
            if unseen.opened.is_empty() {
                self.0.remove(tenant);
            }
        }
    }

    #[cfg(test)]
    fn unseen(&self) -> usize {
        self.0.values().map(|unseen| unseen.opened.len()).sum()
    }
}

fn room(unseen: u64, held: u64, max: u64) -> Room {
    let left = max.saturating_sub(held);
    if unseen < left.min(UNSEEN.max(left / ROUTERS)) {
        Room::Taken
    } else if unseen < left {
        Room::Later
    } else {
        Room::Full
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn tenant(id: u8) -> TenantId {
        TenantId::parse(&format!("t{id}")).unwrap()
    }

    fn session(id: u32) -> SessionId {
        SessionId::parse(&format!("s{id}")).unwrap()
    }

    #[test]
    fn p7_a_hundred_thousand_opens_stop_at_the_quota_and_leave_little_behind() {
        let mut openings = Openings::default();
        let mut store: HashSet<SessionId> = HashSet::new();
        let mut refused = 0;
        for id in 0..100_000 {
            let session = session(id);
            let knows = |session: &SessionId| store.contains(session);
            let held = Held { count: store.len() as u64, knows: &knows };
            match openings.open((&tenant(0), &session), &held, 1_000, Tick::default()) {
                Room::Taken => assert!(store.insert(session)),
                Room::Later => panic!("the store has shown all of them"),
                Room::Full => refused += 1,
            }
            assert!(openings.unseen() as u64 <= UNSEEN);
        }
        assert_eq!((store.len(), refused), (1_000, 99_000));
        let nothing = Held { count: 0, knows: &|_| false };
        assert_eq!(openings.open((&tenant(1), &session(0)), &nothing, 1_000, Tick::default()), Room::Taken);
    }

    proptest! {
        /// Routers that see each other's sessions late overshoot by no more than they are allowed to, and one alone not
        /// at all.
        #[test]
        fn routers_that_race_overshoot_by_a_bounded_number(
            routers in 1usize..6,
            max in 1u64..400,
            ops in prop::collection::vec((0usize..6, 0u8..8), 0..1_000),
        ) {
            let mut openings: Vec<_> = (0..routers).map(|_| Openings::default()).collect();
            let mut store = HashSet::new();
            // What each router has seen of the store.
            let mut views: Vec<HashSet<SessionId>> = vec![HashSet::new(); routers];
            for (next, (router, op)) in ops.into_iter().enumerate() {
                let router = router % routers;
                if op == 0 {
                    views[router].clone_from(&store);
                    continue;
                }
                let (id, view) = (session(u32::try_from(next).unwrap()), &views[router]);
                let knows = |session: &SessionId| view.contains(session);
                let held = Held { count: view.len() as u64, knows: &knows };
                if openings[router].open((&tenant(0), &id), &held, max, Tick::default()) == Room::Taken {
                    // One in eight is refused by its worker.
                    if op == 1 {
                        openings[router].failed(&tenant(0), &id);
                    } else {
                        store.insert(id);
                    }
                }
            }
            let over = (routers as u64 - 1) * UNSEEN;
            prop_assert!(store.len() as u64 <= max + over, "{} of {max}, {over} allowed", store.len());
        }

        /// Asking about sessions that were opened before costs a new one a few questions, however many there are.
        #[test]
        fn an_opened_session_is_asked_about_a_few_times(behind in 0u32..500, opened in 1u32..3_000) {
            let (mut openings, asked) = (Openings::default(), std::cell::Cell::new(0u32));
            for id in 0..opened {
                let number = |session: &SessionId| session.as_str()[1..].parse::<u32>().unwrap();
                let knows = |session: &SessionId| {
                    asked.set(asked.get() + 1);
                    number(session) + behind < id
                };
                let held = Held { count: u64::from(id.saturating_sub(behind)), knows: &knows };
                let room = openings.open((&tenant(0), &session(id)), &held, 100_000, Tick::default());
                prop_assert_eq!(room, Room::Taken);
                prop_assert!(openings.unseen() as u64 <= UNSEEN.max(2 * u64::from(behind) + 2));
            }
            prop_assert!(asked.get() <= 4 * opened, "{} for {opened}", asked.get());
        }

        #[test]
        fn what_never_appears_is_forgotten(count in 1u32..60) {
            let mut openings = Openings::default();
            let nothing = Held { count: 0, knows: &|_| false };
            for id in 0..count {
                let room = openings.open((&tenant(0), &session(id)), &nothing, u64::from(count), Tick::default());
                prop_assert_eq!(room, Room::Taken);
            }
            let last = session(count);
            prop_assert_eq!(
                openings.open((&tenant(0), &last), &nothing, u64::from(count), Tick::default()),
                Room::Full
            );
            let later = Tick(SETTLES_IN);
            prop_assert_eq!(openings.open((&tenant(0), &last), &nothing, u64::from(count), later), Room::Taken);
            prop_assert_eq!(openings.unseen(), 1);
            openings.failed(&tenant(0), &last);
            prop_assert_eq!((openings.unseen(), openings.0.len()), (0, 0));
        }
    }
}

//! What the router knows: the fleet and the owners, fed by the store's watch, behind one lock.
//!
//! The lock is held for one lookup or one update and never across an await. Nothing but the watch changes owners or
//! groups.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::{GroupRecord, Owner};
use hawser_common::{GroupId, SessionKey};
use hawser_placement::{Change, Event, Update};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::watch;

use crate::affinity::Affinity;
use crate::balance;
use crate::error::RouteError;
use crate::fleet::{Fleet, Load, Member};

/// Where a call is sent.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) owner: Owner,
    pub(crate) address: String,
    /// The store, or a worker that asked it, says that this group owns the session.
    pub(crate) held: bool,
    pub(crate) load: Arc<Load>,
}

impl Target {
    fn of(member: &Member, held: bool) -> Self {
        Self {
            owner: member.record.owner(),
            address: member.record.address.clone(),
            held,
            load: Arc::clone(&member.load),
        }
    }
}

/// What a call needs of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) session: Option<&'a SessionKey>,
    /// Empty where any model will do.
    pub(crate) model: &'a str,
    /// Groups that have refused the call.
    pub(crate) excluded: &'a [GroupId],
}

#[derive(Debug)]
pub(crate) struct View {
    known: Mutex<Known>,
    max_sessions: usize,
    clock: Clock,
    /// Counts updates, for whoever waits for one. Zero before the first snapshot.
    updates: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    affinity: Affinity,
    fleet: Fleet,
    rng: StdRng,
    /// When the store was last heard.
    heard: Option<Tick>,
}

impl Known {
    /// Takes one change over, and says whether a group left.
    fn event(&mut self, event: Event, now: Tick) -> bool {
        match event {
            Event::GroupChanged(record) => self.fleet.changed(record, now),
            Event::GroupGone(group) => {
                self.fleet.gone(&group);
                self.affinity.group_gone(&group);
                return true;
            }
            Event::Claimed(session, owner) => self.affinity.claimed(session, owner),
            Event::Released(session) => self.affinity.released(&session),
        }
        false
    }
}

impl View {
    pub(crate) fn new(clock: Clock, max_sessions: usize, seed: u64) -> Self {
        let (affinity, fleet) = (Affinity::new(max_sessions), Fleet::default());
        let known = Mutex::new(Known { affinity, fleet, rng: StdRng::seed_from_u64(seed), heard: None });
        Self { known, max_sessions, clock, updates: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing under the lock can panic half-way through a change that matters.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an update of the store over, and says whether a group may have left.
    pub(crate) fn apply(&self, update: Update) -> bool {
        let now = self.clock.now();
        let left = match update.change {
            Change::Snapshot(snapshot) => {
                // Built before the lock is taken: there may be a million claims.
                let affinity = Affinity::of(snapshot.claims, self.max_sessions);
                let mut known = self.lock();
                known.heard = Some(now);
                known.fleet.replace(snapshot.groups, now);
                let old = std::mem::replace(&mut known.affinity, affinity);
                drop(known);
                drop(old);
                true
            }
            Change::Events(events) => {
                let mut known = self.lock();
                known.heard = Some(now);
                // Every event is taken over, whatever the ones before it said.
                let mut left = false;
                for event in events {
                    left |= known.event(event, now);
                }
                left
            }
        };
        self.updates.send_modify(|updates| *updates += 1);
        left
    }

    /// The owner of the session if it has one, else a group that may take it.
    pub(crate) fn choose(&self, wanted: Wanted<'_>) -> Result<Target, RouteError> {
        let mut known = self.lock();
        let Known { affinity, fleet, rng, .. } = &mut *known;
        if fleet.is_empty() {
            return Err(RouteError::NoGroups);
        }
        if !wanted.model.is_empty() && !fleet.members().any(|member| member.record.model == wanted.model) {
            let known = fleet.models().join(", ");
            return Err(RouteError::UnknownModel { name: wanted.model.to_owned(), known });
        }
        if let Some(session) = wanted.session
            && let Some(owner) = affinity.owner(session)
            && let Some(member) = fleet.member(&owner.group)
        {
            if !wanted.model.is_empty() && member.record.model != wanted.model {
                let (held, asked) = (member.record.model.clone(), wanted.model.to_owned());
                return Err(RouteError::WrongModel { session: session.session.clone(), held, asked });
            }
            return Ok(Target { owner: owner.clone(), ..Target::of(member, true) });
        }
        if wanted.model.is_empty() && fleet.models().len() > 1 {
            return Err(RouteError::WhichModel { known: fleet.models().join(", ") });
        }
        let may = |member: &&Member| {
            let record = &member.record;
            let serves = wanted.model.is_empty() || record.model == wanted.model;
            serves && !record.draining && !wanted.excluded.contains(&record.id)
        };
        let candidates = fleet.members().filter(may).collect();
        match balance::choose(candidates, self.clock.now(), rng) {
            Some(member) => Ok(Target::of(member, false)),
            None => Err(RouteError::NoneLeft { tried: wanted.excluded.len() }),
        }
    }

    /// The target that `owner` stands for, if its group is known. The epoch is the owner's own: whoever named it may
    /// know better than this view.
    pub(crate) fn target(&self, owner: &Owner) -> Option<Target> {
        let known = self.lock();
        let member = known.fleet.member(&owner.group)?;
        Some(Target { owner: owner.clone(), ..Target::of(member, true) })
    }

    pub(crate) fn owner(&self, session: &SessionKey) -> Option<Owner> {
        self.lock().affinity.owner(session).cloned()
    }

    pub(crate) fn shun(&self, group: &GroupId) {
        self.lock().fleet.shun(group, self.clock.now());
    }

    /// Every group, by id.
    pub(crate) fn groups(&self) -> Vec<GroupRecord> {
        let mut records: Vec<_> = self.lock().fleet.members().map(|member| member.record.clone()).collect();
        records.sort_by(|a, b| a.id.cmp(&b.id));
        records
    }

    /// Calls in flight by group.
    pub(crate) fn loads(&self) -> Vec<(GroupId, u32)> {
        let known = self.lock();
        known.fleet.members().map(|member| (member.record.id.clone(), member.load.count())).collect()
    }

    /// Sessions whose owner is remembered.
    pub(crate) fn sessions_known(&self) -> usize {
        self.lock().affinity.len()
    }

    pub(crate) fn groups_known(&self) -> usize {
        self.lock().fleet.len()
    }

    /// Time since the store was last heard; `None` before the first time.
    pub(crate) fn heard_ago(&self) -> Option<Duration> {
        let heard = self.lock().heard?;
        Some(self.clock.now().since(heard))
    }

    /// Whether the store has been heard.
    pub(crate) fn ready(&self) -> bool {
        *self.updates.borrow() > 0
    }

    /// Waits until `done`, looking after every update, for at most `limit`.
    pub(crate) async fn wait(&self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let mut updates = self.updates.subscribe();
        let looking = async {
            // Marked before looking, so that an update in between is looked at again.
            updates.mark_unchanged();
            while !done(self) {
                if updates.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(limit, looking).await.unwrap_or(false)
    }
}

//! What the router knows: the fleet and the owners, fed by the store's watch, behind one lock.
//!
//! The lock is held for one lookup or one update and never across an await. Nothing but the watch changes owners or
//! groups; calls leave holds, which are this router's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::{GroupRecord, Owner};
use hawser_common::{GroupId, SessionKey, TenantId};
use hawser_placement::{Change, Event, Update};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tracing::info;

use crate::affinity::{Affinity, HoldId, Spent, Standing};
use crate::error::RouteError;
use crate::fleet::{Fleet, Load, Member};
use crate::prefix::{Prefix, Prefixes};
use crate::strategy::{Choice, Strategy};

/// Where a call is sent.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) owner: Owner,
    pub(crate) address: String,
    /// The store, or a worker that asked it, says that this group owns the session.
    pub(crate) held: bool,
    pub(crate) load: Arc<Load>,
    /// The session's hold of the group, where this router chose it.
    pub(crate) hold: Option<HoldId>,
}

impl Target {
    fn of(member: &Member, held: bool) -> Self {
        Self {
            owner: member.record.owner(),
            address: member.record.address.clone(),
            held,
            load: Arc::clone(&member.load),
            hold: None,
        }
    }
}

/// What became of a turn that was sent to a group by choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    /// The group's first frame is there.
    Answered,
    Refused,
    /// The caller went before the group answered.
    GivenUp,
}

/// What a call needs of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) session: Option<&'a SessionKey>,
    /// Empty where any model will do.
    pub(crate) model: &'a str,
    /// How its conversation begins.
    pub(crate) prefix: Option<Prefix>,
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
    prefixes: Prefixes,
    rng: StdRng,
    /// When the store was last heard.
    heard: Option<Tick>,
    strategy: Strategy,
    /// Choices made so far.
    choices: u64,
}

/// What follows from updates, once the lock is given back.
#[derive(Default)]
struct News {
    /// A group may have left.
    left: bool,
    /// Groups whose word cannot be gone by.
    contradicting: Vec<GroupId>,
    /// What had to make room. It may be large.
    spent: Vec<Spent>,
}

impl Known {
    fn event(&mut self, event: Event, now: Tick, news: &mut News) {
        match event {
            Event::GroupChanged(record) => {
                let group = record.id.clone();
                if self.fleet.changed(record, now) {
                    news.contradicting.push(group);
                }
            }
            Event::GroupGone(group) => {
                self.fleet.gone(&group, now);
                self.affinity.group_gone(&group);
                news.left = true;
            }
            Event::Claimed(session, owner) => news.spent.extend(self.affinity.claimed(session, owner)),
            Event::Released(session) => self.affinity.released(&session),
        }
    }
}

impl View {
    pub(crate) fn new(clock: Clock, max_sessions: usize, seed: u64) -> Self {
        let (affinity, fleet) = (Affinity::new(max_sessions), Fleet::default());
        let (prefixes, rng) = (Prefixes::default(), StdRng::seed_from_u64(seed));
        let (strategy, heard) = (Strategy::default(), None);
        let known = Mutex::new(Known { affinity, fleet, prefixes, rng, heard, strategy, choices: 0 });
        Self { known, max_sessions, clock, updates: watch::Sender::new(0) }
    }

    /// Places calls without an owner in another way than usual.
    pub(crate) fn place_by(&self, strategy: Strategy) {
        self.lock().strategy = strategy;
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing under the lock can panic half-way through a change that matters.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an update of the store over, and says whether a group may have left.
    pub(crate) fn apply(&self, update: Update) -> bool {
        let now = self.clock.now();
        let mut news = News::default();
        match update.change {
            Change::Snapshot(snapshot) => {
                // Built before the lock is taken, and the old one dropped after: there may be a million claims.
                let affinity = Affinity::of(snapshot.claims, self.max_sessions);
                let mut known = self.lock();
                known.heard = Some(now);
                known.fleet.replace(snapshot.groups, now);
                let old = known.affinity.replace(affinity);
                drop(known);
                drop(old);
                news.left = true;
            }
            Change::Events(events) => {
                let mut known = self.lock();
                known.heard = Some(now);
                // Every event is taken over, whatever the ones before it said.
                for event in events {
                    known.event(event, now, &mut news);
                }
            }
        }
        for group in &news.contradicting {
            info!(%group, "reports that nothing runs while calls run there; it is judged by this router's own counts");
        }
        self.updates.send_modify(|updates| *updates += 1);
        news.left
    }

    /// The owner of the session if it has one, else the group that its other first turns went to, else one that may
    /// take it, held for the session until the caller says how it went.
    pub(crate) fn choose(&self, wanted: Wanted<'_>) -> Result<Target, RouteError> {
        let now = self.clock.now();
        let mut known = self.lock();
        let Known { affinity, fleet, prefixes, rng, strategy, choices, .. } = &mut *known;
        if fleet.is_empty() {
            return Err(RouteError::NoGroups);
        }
        if !wanted.model.is_empty() && !fleet.members().any(|member| member.record.model == wanted.model) {
            let known = fleet.models().join(", ");
            return Err(RouteError::UnknownModel { name: wanted.model.to_owned(), known });
        }
        let may = |member: &&Member| {
            let record = &member.record;
            let serves = wanted.model.is_empty() || record.model == wanted.model;
            serves && !record.draining && !wanted.excluded.contains(&record.id)
        };
        let mut held = None;
        if let Some(session) = wanted.session {
            match affinity.standing(session, now) {
                Standing::Leased(owner) => {
                    if let Some(member) = fleet.member(&owner.group) {
                        if !wanted.model.is_empty() && member.record.model != wanted.model {
                            let (held, asked) = (member.record.model.clone(), wanted.model.to_owned());
                            let session = session.session.clone();
                            return Err(RouteError::WrongModel { session, held, asked });
                        }
                        return Ok(Target { owner: Owner::clone(owner), ..Target::of(member, true) });
                    }
                }
                Standing::Held(group) => held = fleet.member(group).filter(may),
                Standing::Unknown => {}
            }
        }
        if wanted.model.is_empty() && fleet.has_several_models() {
            return Err(RouteError::WhichModel { known: fleet.models().join(", ") });
        }
        let sessions = |group: &GroupId| affinity.sessions_at(group);
        let member = held.or_else(|| {
            let near = wanted.prefix.map_or(&[][..], |prefix| prefixes.groups(prefix));
            let turn = std::mem::replace(choices, choices.wrapping_add(1));
            let candidates = fleet.members().filter(may).collect();
            let (session, sessions) = (wanted.session, &sessions);
            strategy.choose(Choice { candidates, near, sessions, session, turn, now }, rng)
        });
        let Some(member) = member else {
            return Err(RouteError::NoneLeft { tried: wanted.excluded.len() });
        };
        let mut target = Target::of(member, false);
        if let Some(session) = wanted.session {
            target.hold = affinity.hold(session, &target.owner.group);
        }
        Ok(target)
    }

    /// A group took a call that begins so.
    pub(crate) fn sent(&self, prefix: Prefix, group: &GroupId) {
        self.lock().prefixes.sent(prefix, group);
    }

    /// How the turn went for which a group was held.
    pub(crate) fn settle(&self, session: &SessionKey, hold: HoldId, went: Went) {
        let now = self.clock.now();
        let mut known = self.lock();
        match went {
            Went::Answered => known.affinity.commit(session, hold, now),
            Went::Refused => known.affinity.refuse(session, hold),
            Went::GivenUp => known.affinity.give_up(session, hold),
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
        self.lock().affinity.owner(session).map(|owner| Owner::clone(owner))
    }

    /// Whether the session has an owner, or a group that its turns go to.
    pub(crate) fn is_known(&self, session: &SessionKey) -> bool {
        self.lock().affinity.is_known(session)
    }

    /// Whether the store names an owner of the session.
    pub(crate) fn has_owner(&self, session: &SessionKey) -> bool {
        self.lock().affinity.owner(session).is_some()
    }

    /// The model that the session's owner serves.
    pub(crate) fn model_of(&self, session: &SessionKey) -> Option<String> {
        let known = self.lock();
        let owner = known.affinity.owner(session)?;
        Some(known.fleet.member(&owner.group)?.record.model.clone())
    }

    /// Sessions of a tenant, as far as they are remembered.
    pub(crate) fn sessions_of(&self, tenant: &TenantId) -> u64 {
        self.lock().affinity.sessions_of(tenant)
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

    /// Groups that left in the last minutes, by id.
    pub(crate) fn departed(&self) -> Vec<GroupRecord> {
        let mut records: Vec<_> = self.lock().fleet.departed(self.clock.now()).cloned().collect();
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

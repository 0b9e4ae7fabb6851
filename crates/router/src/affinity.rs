//! Which group a session's turns go to. Pure; time is an argument.
//!
//! | state | how it comes about | how it ends |
//! |---|---|---|
//! | unknown | | a turn takes a hold |
//! | held | a first turn was sent to a group that was chosen; other first turns follow it | the group refuses, every turn gives up, or one commits |
//! | committed | the group sent its first frame, so it has the claim | the claim is seen, or after a while |
//! | leased | the store says who owns the session | the claim is released, or its group goes |
//! | idle | leased, and not used for long | forgotten when there is no room for another |
//!
//! Holds and commits are hints for this router's own turns: they are never asserted to a worker, and a group that was
//! chosen by one may refuse. Only a lease names an owner. Forgetting is safe: a turn of a session that is not known is
//! offered to some group, which learns the owner from the store and says so.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::Owner;
use hawser_common::{GroupId, SessionKey, TenantId};

use crate::generations::Generations;

/// How long a commit is kept without the store's word: the watch lags by milliseconds.
const COMMITTED_FOR: Duration = Duration::from_secs(10);

/// Claims that were let go of, for the caller to drop where it holds no lock.
pub(crate) type Spent = HashMap<SessionKey, Arc<Owner>>;

/// One hold of a group for a session. Turns that share it have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldId(u64);

#[derive(Debug)]
struct Hold {
    id: HoldId,
    group: GroupId,
    /// Turns that have not heard from the group yet.
    turns: u32,
    committed_until: Option<Tick>,
}

/// What is known of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    Leased(&'a Arc<Owner>),
    Held(&'a GroupId),
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Affinity {
    leases: Generations<SessionKey, Arc<Owner>>,
    holds: HashMap<SessionKey, Hold>,
    /// Commits in the order in which they end.
    commits: VecDeque<(Tick, SessionKey, HoldId)>,
    limit: usize,
    next_hold: u64,
    /// Each group's latest owner, kept once.
    owners: HashMap<GroupId, Arc<Owner>>,
    counts: Counts,
}

/// Leases of each tenant, whose name is kept once with them, and at each group. What has none is not in it.
#[derive(Debug, Default)]
struct Counts {
    tenants: HashMap<TenantId, u64>,
    groups: HashMap<GroupId, u64>,
}

impl Counts {
    fn add(&mut self, tenant: &TenantId, group: &GroupId) {
        add(&mut self.tenants, tenant);
        add(&mut self.groups, group);
    }

    fn take(&mut self, tenant: &TenantId, group: &GroupId) {
        take(&mut self.tenants, tenant);
        take(&mut self.groups, group);
    }
}

fn add<K: Clone + Eq + Hash>(counts: &mut HashMap<K, u64>, key: &K) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => {
            counts.insert(key.clone(), 1);
        }
    }
}

fn take<K: Eq + Hash>(counts: &mut HashMap<K, u64>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Affinity {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            leases: Generations::new(limit),
            holds: HashMap::new(),
            commits: VecDeque::new(),
            limit,
            next_hold: 0,
            owners: HashMap::new(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Where the session's next turn goes, which counts as use.
    pub(crate) fn standing(&mut self, session: &SessionKey, now: Tick) -> Standing<'_> {
        self.expire(now);
        if let Some(owner) = self.leases.touch(session) {
            return Standing::Leased(owner);
        }
        self.holds.get(session).map_or(Standing::Unknown, |hold| Standing::Held(&hold.group))
    }

    /// The owner, if the store named one.
    pub(crate) fn owner(&self, session: &SessionKey) -> Option<&Arc<Owner>> {
        self.leases.look(session)
    }

    /// Whether the session's next turn has a place to go to.
    pub(crate) fn is_known(&self, session: &SessionKey) -> bool {
        self.leases.look(session).is_some() || self.holds.contains_key(session)
    }

    /// A turn of the session is sent to a group that does not own it. `None`: nothing is held, since the session has an
    /// owner, is held at another group, or there is no room.
    pub(crate) fn hold(&mut self, session: &SessionKey, group: &GroupId) -> Option<HoldId> {
        if self.leases.look(session).is_some() {
            return None;
        }
        if let Some(hold) = self.holds.get_mut(session) {
            return (hold.group == *group).then(|| {
                hold.turns += 1;
                hold.id
            });
        }
        if self.holds.len() >= self.limit {
            return None;
        }
        let id = HoldId(self.next_hold);
        self.next_hold += 1;
        let hold = Hold { id, group: group.clone(), turns: 1, committed_until: None };
        self.holds.insert(session.clone(), hold);
        Some(id)
    }

    /// The group answered the turn, so the session is its own.
    pub(crate) fn commit(&mut self, session: &SessionKey, id: HoldId, now: Tick) {
        self.expire(now);
        let Some(hold) = self.holds.get_mut(session).filter(|hold| hold.id == id) else { return };
        hold.turns -= 1;
        if hold.committed_until.is_some() {
            return;
        }
        if self.commits.len() >= self.limit {
            self.holds.remove(session);
            return;
        }
        let until = now.after(COMMITTED_FOR);
        hold.committed_until = Some(until);
        self.commits.push_back((until, session.clone(), id));
    }

    /// The group refused the turn: nothing is left of the hold, for any turn, unless the group answered another one.
    pub(crate) fn refuse(&mut self, session: &SessionKey, id: HoldId) {
        self.leave(session, id, |_| true);
    }

    /// The turn gave up before the group answered.
    pub(crate) fn give_up(&mut self, session: &SessionKey, id: HoldId) {
        self.leave(session, id, |hold| hold.turns == 0);
    }

    fn leave(&mut self, session: &SessionKey, id: HoldId, ends: impl Fn(&Hold) -> bool) {
        let Some(hold) = self.holds.get_mut(session).filter(|hold| hold.id == id) else { return };
        hold.turns -= 1;
        if hold.committed_until.is_none() && ends(hold) {
            self.holds.remove(session);
        }
    }

    fn expire(&mut self, now: Tick) {
        while self.commits.front().is_some_and(|(until, ..)| *until <= now) {
            let Some((_, session, id)) = self.commits.pop_front() else { return };
            if self.holds.get(&session).is_some_and(|hold| hold.id == id) {
                self.holds.remove(&session);
            }
        }
    }

    pub(crate) fn claimed(&mut self, session: SessionKey, owner: Owner) -> Option<Spent> {
        self.holds.remove(&session);
        let owner = self.shared(owner);
        let known = self.counts.tenants.get_key_value(&session.tenant).map(|(tenant, _)| tenant.clone());
        let key = SessionKey { tenant: known.unwrap_or(session.tenant), session: session.session };
        if let Some(before) = self.leases.look(&key) {
            self.counts.take(&key.tenant, &before.group);
        }
        let spent = self.leases.insert(key.clone(), owner);
        // Where there is no room it is not kept.
        if let Some(owner) = self.leases.look(&key) {
            self.counts.add(&key.tenant, &owner.group);
        }
        spent.iter().flatten().for_each(|(gone, owner)| self.counts.take(&gone.tenant, &owner.group));
        spent
    }

    /// Sessions of a tenant that are remembered.
    pub(crate) fn sessions_of(&self, tenant: &TenantId) -> u64 {
        self.counts.tenants.get(tenant).copied().unwrap_or(0)
    }

    /// Sessions of a group that are remembered, whether or not they have a turn.
    pub(crate) fn sessions_at(&self, group: &GroupId) -> u64 {
        self.counts.groups.get(group).copied().unwrap_or(0)
    }

    fn shared(&mut self, owner: Owner) -> Arc<Owner> {
        match self.owners.get(&owner.group) {
            Some(held) if **held == owner => Arc::clone(held),
            _ => {
                let owner = Arc::new(owner);
                self.owners.insert(owner.group.clone(), Arc::clone(&owner));
                owner
            }
        }
    }

    pub(crate) fn released(&mut self, session: &SessionKey) {
        if let Some(owner) = self.leases.remove(session) {
            self.counts.take(&session.tenant, &owner.group);
        }
    }

    /// Forgets every session of a group. Walks all of them: a group goes seldom.
    pub(crate) fn group_gone(&mut self, group: &GroupId) {
        self.owners.remove(group);
        let counts = &mut self.counts;
        self.leases.retain(|session, owner| {
            let stays = owner.group != *group;
            if !stays {
                counts.take(&session.tenant, group);
            }
            stays
        });
        self.holds.retain(|_, hold| hold.group != *group);
    }

    /// What is known from a snapshot of the store.
    pub(crate) fn of(claims: Vec<(SessionKey, Owner)>, limit: usize) -> Self {
        let mut known = Self::new(limit);
        for (session, owner) in claims {
            known.claimed(session, owner);
        }
        known
    }

    /// Takes a snapshot's place, with the holds of turns that are under way. Returns what it replaces.
    pub(crate) fn replace(&mut self, mut latest: Self) -> Self {
        latest.next_hold = self.next_hold;
        latest.holds = std::mem::take(&mut self.holds);
        latest.holds.retain(|session, _| latest.leases.look(session).is_none());
        latest.commits = std::mem::take(&mut self.commits);
        std::mem::replace(self, latest)
    }
}

#[cfg(test)]
#[path = "affinity_tests.rs"]
mod tests;

//! The state machine of the embedded store: leases, groups, claims. Pure; time is an argument.
//!
//! Invariants after every operation: each claim is in exactly one live lease's set; each registered group belongs to
//! exactly one live lease; a lease with claims has a group. Operations check first and change afterwards.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::{Epoch, GroupId, SessionKey};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::EmbeddedOptions;
use super::log::EventLog;
use crate::store::{ClaimOutcome, Event, Lease, LeaseId, MAX_BATCH, StoreError};

/// Shortest and longest time of a lease.
const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct State {
    options: EmbeddedOptions,
    leases: HashMap<LeaseId, Held>,
    /// When each lease ends, soonest first.
    ends: BTreeSet<(Tick, LeaseId)>,
    groups: HashMap<GroupId, GroupRecord>,
    claims: HashMap<SessionKey, LeaseId>,
    next_epoch: u64,
    rng: StdRng,
    log: EventLog,
}

#[derive(Debug)]
struct Held {
    ttl: Duration,
    end: Tick,
    group: Option<GroupId>,
    /// Shared with snapshots that are still being written out; copied if it changes meanwhile.
    claims: Arc<HashSet<SessionKey>>,
}

/// The state at one revision, cheap to take: claims by owner, not yet one by one.
#[derive(Debug)]
pub(super) struct Frozen {
    pub(super) revision: u64,
    pub(super) groups: Vec<GroupRecord>,
    pub(super) claims: Vec<(Owner, Arc<HashSet<SessionKey>>)>,
}

impl State {
    pub(super) fn new(options: EmbeddedOptions, seed: u64) -> Self {
        Self {
            options,
            leases: HashMap::new(),
            ends: BTreeSet::new(),
            groups: HashMap::new(),
            claims: HashMap::new(),
            next_epoch: options.first_epoch,
            rng: StdRng::seed_from_u64(seed),
            log: EventLog::new(options.max_events),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.log.revision()
    }

    pub(super) fn log(&self) -> &EventLog {
        &self.log
    }

    /// Ends every lease whose time is over. Called before every other operation.
    pub(super) fn expire(&mut self, now: Tick) {
        while let Some(&(end, lease)) = self.ends.first() {
            if end > now {
                return;
            }
            self.end(lease);
        }
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Tick) -> Result<Lease, StoreError> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            let reason = format!("a lease of {ttl:?} is asked for; allowed are {MIN_TTL:?} to {MAX_TTL:?}");
            return Err(StoreError::Invalid { reason });
        }
        if self.leases.len() >= self.options.max_leases {
            return Err(StoreError::Full { reason: format!("{} leases are held", self.leases.len()) });
        }
        // Numbers are drawn, so that a lease of an earlier run of this store is never taken for one of this run.
        let id = loop {
            let id = LeaseId(self.rng.random());
            if id.0 != 0 && !self.leases.contains_key(&id) {
                break id;
            }
        };
        let end = now.after(ttl);
        self.leases.insert(id, Held { ttl, end, group: None, claims: Arc::default() });
        self.ends.insert((end, id));
        Ok(Lease { id, ttl })
    }

    pub(super) fn renew(&mut self, lease: LeaseId, now: Tick) -> Result<Duration, StoreError> {
        let held = self.leases.get_mut(&lease).ok_or(StoreError::LeaseGone { lease })?;
        self.ends.remove(&(held.end, lease));
        held.end = now.after(held.ttl);
        self.ends.insert((held.end, lease));
        Ok(held.ttl)
    }

    /// Ends a lease and everything under it.
    pub(super) fn end(&mut self, lease: LeaseId) {
        if let Some(mut held) = self.leases.remove(&lease) {
            self.ends.remove(&(held.end, lease));
            self.end_registration(&mut held);
        }
    }

    fn end_registration(&mut self, held: &mut Held) {
        for session in std::mem::take(&mut held.claims).iter() {
            self.claims.remove(session);
        }
        if let Some(group) = held.group.take() {
            self.groups.remove(&group);
            self.log.push(Event::GroupGone(group));
        }
    }

    pub(super) fn register(&mut self, lease: LeaseId, mut record: GroupRecord) -> Result<Epoch, StoreError> {
        let held = self.leases.get(&lease).ok_or(StoreError::LeaseGone { lease })?;
        match &held.group {
            Some(group) if *group != record.id => {
                let reason = format!("lease {lease} holds group {group} already; take one lease per group");
                return Err(StoreError::Invalid { reason });
            }
            Some(_) => {}
            None => {
                if let Some(holder) = self.groups.get(&record.id) {
                    return Err(StoreError::taken(holder.owner(), &holder.address));
                }
            }
        }
        if let Some(mut held) = self.leases.remove(&lease) {
            self.end_registration(&mut held);
            held.group = Some(record.id.clone());
            self.leases.insert(lease, held);
        }
        record.epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        let epoch = record.epoch;
        self.log.push(Event::GroupChanged(record.clone()));
        self.groups.insert(record.id.clone(), record);
        Ok(epoch)
    }

    pub(super) fn publish(
        &mut self,
        lease: LeaseId,
        group: &GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> Result<(), StoreError> {
        self.held(lease, group)?;
        if let Some(record) = self.groups.get_mut(group) {
            record.capacity = capacity;
            record.draining = draining;
            self.log.push(Event::GroupChanged(record.clone()));
        }
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        lease: LeaseId,
        group: &GroupId,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        bounded(sessions.len())?;
        let owner = self.held(lease, group)?;
        if self.claims.len() + sessions.len() > self.options.max_claims {
            return Err(StoreError::Full { reason: format!("{} sessions are claimed", self.claims.len()) });
        }
        Ok(sessions.into_iter().map(|session| self.claim_one(lease, &owner, session)).collect())
    }

    fn claim_one(&mut self, lease: LeaseId, owner: &Owner, session: SessionKey) -> ClaimOutcome {
        match self.claims.get(&session) {
            Some(&holder) if holder == lease => ClaimOutcome::Won,
            Some(&holder) => ClaimOutcome::Owned(self.owner(holder)),
            None => {
                if let Some(held) = self.leases.get_mut(&lease) {
                    Arc::make_mut(&mut held.claims).insert(session.clone());
                }
                self.log.push(Event::Claimed(session.clone(), owner.clone()));
                self.claims.insert(session, lease);
                ClaimOutcome::Won
            }
        }
    }

    pub(super) fn release(&mut self, lease: LeaseId, sessions: &[SessionKey]) -> Result<(), StoreError> {
        bounded(sessions.len())?;
        let held = self.leases.get_mut(&lease).ok_or(StoreError::LeaseGone { lease })?;
        let claims = Arc::make_mut(&mut held.claims);
        for session in sessions {
            if let Some(session) = claims.take(session) {
                self.claims.remove(&session);
                self.log.push(Event::Released(session));
            }
        }
        Ok(())
    }

    pub(super) fn freeze(&self) -> Frozen {
        let claims = |held: &Held| {
            let record = held.group.as_ref().and_then(|group| self.groups.get(group))?;
            Some((record.owner(), Arc::clone(&held.claims)))
        };
        Frozen {
            revision: self.revision(),
            groups: self.groups.values().cloned().collect(),
            claims: self.leases.values().filter_map(claims).collect(),
        }
    }

    /// The owner that `group` is under `lease`.
    fn held(&self, lease: LeaseId, group: &GroupId) -> Result<Owner, StoreError> {
        let held = self.leases.get(&lease).ok_or(StoreError::LeaseGone { lease })?;
        match self.groups.get(group) {
            Some(record) if held.group.as_ref() == Some(group) => Ok(record.owner()),
            _ => {
                let reason =
                    format!("group {group} is not registered under lease {lease}; register it first");
                Err(StoreError::Invalid { reason })
            }
        }
    }

    /// The owner that a lease with claims stands for.
    fn owner(&self, lease: LeaseId) -> Owner {
        let group = self.leases.get(&lease).and_then(|held| held.group.as_ref());
        group
            .and_then(|group| self.groups.get(group))
            .expect("a claim belongs to a live lease with a registered group")
            .owner()
    }
}

fn bounded(found: usize) -> Result<(), StoreError> {
    if found <= MAX_BATCH {
        return Ok(());
    }
    Err(StoreError::Invalid { reason: format!("{found} sessions at once; at most {MAX_BATCH} are allowed") })
}

//! From keys to what watchers are told. Pure: keys in, events out.
//!
//! Knows the groups and who owns what, because a deleted key does not say why: a claim may have been released, or may
//! have gone with its group, which is told once and not session by session. Whoever registers, claims or ends a lease
//! writes all of it in one revision, so within a revision the order is: groups that went, groups that came or changed,
//! sessions. A claim whose group is not known is not told; the group's own claims follow its registration.

use std::collections::{BTreeSet, HashMap};

use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::{Epoch, GroupId, SessionKey};
use tracing::warn;

use super::keys::{Key, Keys};
use super::values::{InvalidValue, read_capacity, read_group, read_owner};
use crate::store::{Event, Snapshot};

/// One key as it is now: put, or deleted where there is no value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a [u8]>,
    /// Revision at which the key came to be; of no meaning once it is deleted.
    pub(super) created: u64,
}

/// The state at one revision.
#[derive(Debug)]
pub(super) struct Fold {
    keys: Keys,
    revision: u64,
    groups: HashMap<GroupId, GroupRecord>,
    /// Also of groups that are not known, whose keys sort before or after their group's.
    capacity: HashMap<GroupId, (Capacity, bool)>,
    /// Owners that watchers were told, until their keys are deleted.
    claims: HashMap<SessionKey, Owner>,
}

/// What one revision did, by kind.
#[derive(Default)]
struct Changes {
    gone: Vec<GroupId>,
    changed: BTreeSet<GroupId>,
    sessions: Vec<(SessionKey, Option<Owner>)>,
}

impl Fold {
    /// Nothing, as of `revision`.
    pub(super) fn new(keys: Keys, revision: u64) -> Self {
        let (groups, capacity, claims) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { keys, revision, groups, capacity, claims }
    }

    /// Every registration.
    pub(super) fn registrations(&self) -> impl Iterator<Item = (&GroupId, Epoch)> {
        self.groups.values().map(|record| (&record.id, record.epoch))
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes the keys of one revision over, or a part of a listing at one, and gives what watchers are told.
    pub(super) fn apply<'a>(
        &mut self,
        revision: u64,
        entries: impl IntoIterator<Item = Entry<'a>>,
    ) -> Vec<Event> {
        self.revision = revision;
        let mut changes = Changes::default();
        for entry in entries {
            match self.keys.parse(entry.key) {
                Some(Key::Group(id)) => self.group(id, entry, &mut changes),
                Some(Key::Capacity(id)) => self.capacity(id, entry, &mut changes),
                Some(Key::Session(session)) => {
                    let owner = entry.value.and_then(|value| readable(entry.key, read_owner(value)));
                    changes.sessions.push((session, owner));
                }
                None => {}
            }
        }
        self.events(changes)
    }

    fn group(&mut self, id: GroupId, entry: Entry<'_>, changes: &mut Changes) {
        let read = |value| readable(entry.key, read_group(id.clone(), Epoch(entry.created), value));
        let record = entry.value.and_then(read);
        let epoch = record.as_ref().map(|record| record.epoch);
        if self.groups.get(&id).is_some_and(|known| Some(known.epoch) != epoch) {
            self.groups.remove(&id);
            changes.gone.push(id.clone());
        }
        if let Some(record) = record {
            self.groups.insert(id.clone(), record);
            changes.changed.insert(id);
        }
    }

    fn capacity(&mut self, id: GroupId, entry: Entry<'_>, changes: &mut Changes) {
        match entry.value.map(|value| readable(entry.key, read_capacity(value))) {
            // One that cannot be read leaves the one before.
            Some(None) => {}
            Some(Some(capacity)) => {
                self.capacity.insert(id.clone(), capacity);
                changes.changed.insert(id);
            }
            // It goes with its group.
            None => {
                self.capacity.remove(&id);
            }
        }
    }

    fn events(&mut self, changes: Changes) -> Vec<Event> {
        let mut events: Vec<Event> = changes.gone.into_iter().map(Event::GroupGone).collect();
        let changed = changes.changed.iter().filter_map(|id| self.record(id));
        events.extend(changed.map(Event::GroupChanged).collect::<Vec<_>>());
        for (session, owner) in changes.sessions {
            let before = self.claims.remove(&session);
            if before.is_some_and(|before| self.lives(&before)) {
                events.push(Event::Released(session.clone()));
            }
            if let Some(owner) = owner.filter(|owner| self.lives(owner)) {
                self.claims.insert(session.clone(), owner.clone());
                events.push(Event::Claimed(session, owner));
            }
        }
        events
    }

    fn lives(&self, owner: &Owner) -> bool {
        self.groups.get(&owner.group).is_some_and(|group| group.epoch == owner.epoch)
    }

    fn record(&self, id: &GroupId) -> Option<GroupRecord> {
        let record = self.groups.get(id)?.clone();
        let (capacity, draining) = self.capacity.get(id).copied().unwrap_or_default();
        Some(GroupRecord { capacity, draining, ..record })
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let told = self.claims.iter().filter(|(_, owner)| self.lives(owner));
        Snapshot {
            groups: self.groups.keys().filter_map(|id| self.record(id)).collect(),
            claims: told.map(|(session, owner)| (session.clone(), owner.clone())).collect(),
        }
    }
}

/// What was read, or a word about what is passed over.
fn readable<T>(key: &[u8], read: Result<T, InvalidValue>) -> Option<T> {
    read.inspect_err(|error| {
        let key = String::from_utf8_lossy(key);
        warn!(%key, %error, "passed over a value in etcd that this version cannot read");
    })
    .ok()
}

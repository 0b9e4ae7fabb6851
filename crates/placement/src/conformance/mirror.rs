//! A copy of a store's state, fed by its watch: how the cases compare what watchers saw with what happened.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use hawser_common::group::{GroupRecord, Owner};
use hawser_common::{GroupId, SessionKey};

use crate::store::{Change, Event, Update, Watch};

/// Groups and claims as a watcher knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    pub revision: u64,
    pub snapshots: u32,
    pub groups: BTreeMap<GroupId, GroupRecord>,
    pub claims: BTreeMap<SessionKey, Owner>,
}

impl Mirror {
    /// Takes one update over.
    ///
    /// # Panics
    /// Where a revision goes back, or stands still over changes; where a claim appears without its group, or an event
    /// changes nothing it could change.
    pub fn apply(&mut self, update: Update) {
        assert!(
            update.revision >= self.revision,
            "revision went from {} to {}",
            self.revision,
            update.revision
        );
        let seen = std::mem::replace(&mut self.revision, update.revision);
        match update.change {
            Change::Snapshot(snapshot) => {
                self.snapshots += 1;
                self.groups = snapshot.groups.into_iter().map(|group| (group.id.clone(), group)).collect();
                self.claims = snapshot.claims.into_iter().collect();
            }
            Change::Events(events) => {
                assert!(update.revision > seen, "changes at revision {seen}, which was told before");
                events.into_iter().for_each(|event| self.event(event));
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::GroupChanged(group) => {
                self.groups.insert(group.id.clone(), group);
            }
            Event::GroupGone(group) => {
                self.claims.retain(|_, owner| owner.group != group);
                self.groups.remove(&group);
            }
            Event::Claimed(session, owner) => {
                let epoch = self.groups.get(&owner.group).map(|group| group.epoch);
                assert_eq!(epoch, Some(owner.epoch), "{session:?} was claimed by a group that is not there");
                let before = self.claims.insert(session, owner);
                assert_eq!(before, None, "a session was claimed while it had an owner");
            }
            Event::Released(session) => {
                let before = self.claims.remove(&session);
                assert!(before.is_some(), "{session:?} was released without an owner");
            }
        }
    }

    /// Reads `watch` until `done`.
    ///
    /// # Panics
    /// Where the watch ends, fails, or says nothing for half a minute.
    pub async fn until(&mut self, watch: &mut Watch, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let next = tokio::time::timeout(std::time::Duration::from_secs(30), watch.next());
            let update = next.await.expect("the watch stopped short of what was waited for");
            self.apply(update.expect("the watch ended").expect("the watch failed"));
        }
    }
}

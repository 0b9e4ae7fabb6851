//! Registered groups that this router cannot talk to, for people: each registration is complained of once, with the likely
//! cause.
//!
//! Knows no more groups than are registered. Never decides where a call goes.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_common::group::{GroupRecord, Owner};
use hawser_common::{Coded, Epoch, ErrorCode, GroupId};
use hawser_placement::{Change, Event, Update};
use hawser_proto::{Dial, DialError, Fault};
use thiserror::Error;

/// Why a group gets no sessions from this router.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unreachable {
    #[error(
        "group {group} at {address} talks TLS, and this router has no router.worker_tls: it gets no sessions from here \
         until router.worker_tls.ca_file is set"
    )]
    NoAuthority { group: GroupId, address: String },
    #[error(
        "group {group} at {address} talks plain text, and this router has router.worker_tls: it gets no sessions from \
         here until the group has worker.tls, or the router no router.worker_tls"
    )]
    Plain { group: GroupId, address: String },
    #[error("group {group} registered an address that cannot be used ({cause}): see worker.advertise")]
    Address { group: GroupId, cause: String },
    #[error("cannot connect to group {group} at {address}: {cause}; {hint}")]
    Connect { group: GroupId, address: String, cause: String, hint: &'static str },
}

impl Coded for Unreachable {
    fn code(&self) -> ErrorCode {
        ErrorCode::Unavailable
    }
}

impl Unreachable {
    fn of_dial(group: &GroupId, error: DialError) -> Self {
        let group = group.clone();
        match error {
            DialError::NoAuthority { address } => Self::NoAuthority { group, address },
            DialError::Plain { address } => Self::Plain { group, address },
            error @ (DialError::Address { .. } | DialError::Certificate { .. }) => {
                Self::Address { group, cause: error.to_string() }
            }
        }
    }

    fn of_fault(group: &GroupId, address: &str, fault: &Fault) -> Self {
        let hint = if address.starts_with("https://") {
            "is it there, and do router.worker_tls and worker.tls trust each other's certificates?"
        } else {
            "is it there, and is the address one that routers reach (worker.advertise)?"
        };
        let (group, address, cause) = (group.clone(), address.to_owned(), fault.message.clone());
        Self::Connect { group, address, cause, hint }
    }
}

/// A registration as it was last looked at.
#[derive(Debug)]
struct Seen {
    epoch: Epoch,
    address: String,
    is_told: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Reachable {
    dial: Dial,
    seen: Mutex<HashMap<GroupId, Seen>>,
}

impl Reachable {
    pub(crate) fn new(dial: Dial) -> Self {
        Self { dial, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<GroupId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to complain of after news of the store.
    pub(crate) fn heard(&self, update: &Update) -> Vec<Unreachable> {
        let mut seen = self.seen();
        match &update.change {
            Change::Snapshot(snapshot) => {
                let found =
                    snapshot.groups.iter().filter_map(|record| self.look(&mut seen, record)).collect();
                let known: HashSet<_> = snapshot.groups.iter().map(|record| &record.id).collect();
                seen.retain(|group, _| known.contains(group));
                found
            }
            Change::Events(events) => {
                let mut found = Vec::new();
                for event in events {
                    match event {
                        Event::GroupChanged(record) => found.extend(self.look(&mut seen, record)),
                        Event::GroupGone(group) => drop(seen.remove(group)),
                        Event::Claimed(..) | Event::Released(_) => {}
                    }
                }
                found
            }
        }
    }

    fn look(&self, seen: &mut HashMap<GroupId, Seen>, record: &GroupRecord) -> Option<Unreachable> {
        let (epoch, address) = (record.epoch, &record.address);
        // Most news are of capacity.
        if seen.get(&record.id).is_some_and(|seen| seen.epoch == epoch && seen.address == *address) {
            return None;
        }
        let error = self.dial.endpoint(address).err();
        let is_told = error.is_some();
        seen.insert(record.id.clone(), Seen { epoch, address: address.clone(), is_told });
        error.map(|error| Unreachable::of_dial(&record.id, error))
    }

    /// What to complain of after no connection was made to a group.
    pub(crate) fn unreached(&self, owner: &Owner, address: &str, fault: &Fault) -> Option<Unreachable> {
        let mut seen = self.seen();
        let seen = seen.get_mut(&owner.group)?;
        let is_told = std::mem::replace(&mut seen.is_told, true);
        (!is_told).then(|| Unreachable::of_fault(&owner.group, address, fault))
    }
}

#[cfg(test)]
mod tests {
    use hawser_placement::Snapshot;
    use hawser_proto::fault::Origin;

    use super::*;
    use crate::balance::tests::record;

    fn at(address: &str, epoch: u64) -> GroupRecord {
        GroupRecord { address: address.to_owned(), epoch: Epoch(epoch), ..record("g", 100, 0) }
    }

    fn changed(record: &GroupRecord) -> Update {
        Update { revision: 1, change: Change::Events(vec![Event::GroupChanged(record.clone())]) }
    }

    fn snapshot(groups: Vec<GroupRecord>) -> Update {
        Update { revision: 1, change: Change::Snapshot(Snapshot { groups, claims: Vec::new() }) }
    }

    #[test]
    fn a_group_with_tls_is_complained_of_once_where_the_router_has_no_authority() {
        let router = Reachable::new(Dial::default());
        let group = at("https://worker:7071", 1);
        let told = router.heard(&changed(&group));
        assert!(matches!(told[..], [Unreachable::NoAuthority { .. }]), "{told:?}");
        assert!(told[0].to_string().contains("router.worker_tls"), "{}", told[0]);
        assert!(router.heard(&changed(&group)).is_empty(), "its capacity is no news of that");
        assert!(router.heard(&snapshot(vec![group.clone()])).is_empty());
        // It starts again: whoever did that may have forgotten the router.
        assert_eq!(router.heard(&changed(&at("https://worker:7071", 2))).len(), 1);
        assert!(router.heard(&changed(&at("http://worker:7071", 3))).is_empty());
        let bad = router.heard(&changed(&at("worker:7071", 4)));
        assert!(matches!(bad[..], [Unreachable::Address { .. }]), "{bad:?}");
    }

    #[test]
    fn a_group_that_cannot_be_connected_to_is_complained_of_once_a_registration() {
        let router = Reachable::new(Dial::default());
        let fault = Fault {
            code: ErrorCode::Unavailable,
            message: "connection refused".to_owned(),
            owner: None,
            retry_after: None,
            origin: Origin::Connect,
        };
        let group = at("http://worker:7071", 1);
        let try_it = || router.unreached(&group.owner(), &group.address, &fault);
        assert_eq!(try_it(), None, "it is not registered any more");
        router.heard(&snapshot(vec![group.clone()]));
        let told = try_it().unwrap().to_string();
        assert!(told.contains("connection refused") && told.contains("worker.advertise"), "{told}");
        assert_eq!(try_it(), None);
        router.heard(&changed(&at("http://worker:7071", 2)));
        assert!(try_it().is_some());
        router.heard(&snapshot(Vec::new()));
        assert!(router.seen().is_empty(), "nothing is kept of groups that are gone");
    }
}

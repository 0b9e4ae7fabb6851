//! The state of a fake etcd: keys, leases, and the trail of everything that was ever written. Pure; time is an argument.
//!
//! A lease that has ended is gone at the very next look, which is the earliest that a real etcd might be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd_client::proto::{PbKeyValue, PbResponseHeader};
use hawser_common::clock::Tick;
use tonic::Status;

use super::mvcc::{Mvcc, Range, Unreadable};

/// Shortest lease that etcd gives, in seconds.
const MIN_TTL_S: i64 = 2;
/// Longest, in seconds.
const MAX_TTL_S: i64 = 9_000_000_000;

/// One write, as it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub at: Tick,
    pub revision: i64,
    pub key: String,
    /// `None`: it was deleted.
    pub value: Option<Vec<u8>>,
    pub lease: i64,
}

#[derive(Debug)]
struct Lease {
    ttl_s: i64,
    ends: Tick,
    keys: BTreeSet<Vec<u8>>,
}

/// Everything that an etcd remembers.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) mvcc: Mvcc,
    leases: BTreeMap<i64, Lease>,
    next_lease: i64,
    trail: Vec<Write>,
}

impl State {
    /// An empty one. Leases of different incarnations never have the same number.
    pub(super) fn new(incarnation: u32) -> Self {
        Self { next_lease: (i64::from(incarnation) + 1) << 32, ..Self::default() }
    }

    pub(super) fn header(&self) -> Option<PbResponseHeader> {
        Some(PbResponseHeader { cluster_id: 1, member_id: 1, revision: self.mvcc.revision(), raft_term: 2 })
    }

    pub(super) fn take_trail(&mut self) -> Vec<Write> {
        std::mem::take(&mut self.trail)
    }

    /// Ends the open transaction and notes what it wrote.
    pub(super) fn commit(&mut self, now: Tick) {
        let written = self.mvcc.commit();
        let revision = self.mvcc.revision();
        self.trail.extend(written.into_iter().filter_map(|event| {
            let kv = event.kv?;
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let value = (event.r#type == 0).then_some(kv.value);
            Some(Write { at: now, revision, key, value, lease: kv.lease })
        }));
    }

    pub(super) fn has_lease(&self, lease: i64) -> bool {
        lease == 0 || self.leases.contains_key(&lease)
    }

    /// Puts in the open transaction. The lease must be there.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>, lease: i64) {
        let before = self.mvcc.put(key.clone(), value, lease);
        if let Some(old) = self.leases.get_mut(&before) {
            old.keys.remove(&key);
        }
        if let Some(new) = self.leases.get_mut(&lease) {
            new.keys.insert(key);
        }
    }

    /// Deletes in the open transaction.
    pub(super) fn delete(&mut self, range: &Range) -> Vec<PbKeyValue> {
        let gone = self.mvcc.delete(range);
        for kv in &gone {
            if let Some(lease) = self.leases.get_mut(&kv.lease) {
                lease.keys.remove(&kv.key);
            }
        }
        gone
    }

    pub(super) fn grant(&mut self, id: i64, ttl_s: i64, now: Tick) -> Result<(i64, i64), Status> {
        if ttl_s > MAX_TTL_S {
            return Err(Status::out_of_range("etcdserver: too large lease TTL"));
        }
        let id = if id == 0 {
            self.next_lease += 1;
            self.next_lease
        } else {
            id
        };
        if self.leases.contains_key(&id) {
            return Err(Status::failed_precondition("etcdserver: lease already exists"));
        }
        let ttl_s = ttl_s.max(MIN_TTL_S);
        self.leases.insert(id, Lease { ttl_s, ends: now.after(seconds(ttl_s)), keys: BTreeSet::new() });
        Ok((id, ttl_s))
    }

    /// Time that the lease has now; 0 where there is none.
    pub(super) fn renew(&mut self, id: i64, now: Tick) -> i64 {
        let Some(lease) = self.leases.get_mut(&id) else { return 0 };
        lease.ends = now.after(seconds(lease.ttl_s));
        lease.ttl_s
    }

    /// Time left, time granted, keys.
    pub(super) fn lease(&self, id: i64, now: Tick) -> Option<(i64, i64, Vec<Vec<u8>>)> {
        let lease = self.leases.get(&id)?;
        let left = i64::try_from(lease.ends.since(now).as_secs()).unwrap_or(i64::MAX);
        Some((left, lease.ttl_s, lease.keys.iter().cloned().collect()))
    }

    /// Ends a lease and everything under it, in one revision.
    pub(super) fn revoke(&mut self, id: i64, now: Tick) -> Result<(), Status> {
        let lease = self.leases.remove(&id).ok_or_else(lease_missing)?;
        for key in lease.keys {
            self.mvcc.delete(&Range::new(key, Vec::new()));
        }
        self.commit(now);
        Ok(())
    }

    /// Ends every lease whose time is over, and says whether there was one.
    pub(super) fn expire(&mut self, now: Tick) -> bool {
        let over: Vec<i64> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        for id in &over {
            let _there = self.revoke(*id, now);
        }
        !over.is_empty()
    }

    /// When the next lease ends.
    pub(super) fn next_end(&self) -> Option<Tick> {
        self.leases.values().map(|lease| lease.ends).min()
    }

    /// What a new leader does: no lease ends before its whole time has passed again.
    pub(super) fn promote(&mut self, now: Tick) {
        for lease in self.leases.values_mut() {
            lease.ends = now.after(seconds(lease.ttl_s));
        }
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

pub(super) fn lease_missing() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

pub(super) fn unreadable(why: Unreadable) -> Status {
    match why {
        Unreadable::Compacted => {
            Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
        }
        Unreadable::Future => {
            Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
        }
    }
}

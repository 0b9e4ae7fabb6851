//! Leases and what is registered under them.
//!
//! A group's registration is one key under the group's lease, beside it the key of its capacity. Everything that is
//! written for a group is written on the condition that this key lives under the same lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::{Epoch, GroupId, SessionKey};

use super::fault::Fault;
use super::keys::{Key, Keys};
use super::link::Link;
use super::values::{read_group, write_capacity, write_group};
use super::watch::unsigned;
use super::{IN_FLIGHT, claims, lease_number};
use crate::store::{Lease, LeaseId, StoreError};

/// Longest time of a lease; etcd itself has a shortest, which it gives instead.
const MAX_TTL: Duration = Duration::from_secs(3600);
/// Most registrations that are remembered: a worker has one.
const MAX_REMEMBERED: usize = 1024;

#[derive(Debug)]
pub(super) struct Registry {
    link: Arc<Link>,
    keys: Keys,
    /// Saves a question before a claim; etcd checks it with every one.
    owners: Mutex<HashMap<LeaseId, Owner>>,
}

impl Registry {
    pub(super) fn new(link: Arc<Link>, keys: Keys) -> Self {
        Self { link, keys, owners: Mutex::default() }
    }

    async fn call<T, F>(&self, lease: LeaseId, send: F) -> Result<T, StoreError>
    where
        F: Fn(Client, i64) -> BoxFuture<'static, Result<T, Error>> + Send + Sync,
    {
        let id = lease_number(lease)?;
        self.link.call(|client| send(client, id)).await.map_err(|fault| {
            if fault == Fault::LeaseGone {
                self.forget(lease);
            }
            fault.into_error(lease)
        })
    }

    async fn txn(&self, lease: LeaseId, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.call(lease, |client, _| {
            let (mut kv, txn) = (client.kv_client(), txn.clone());
            Box::pin(async move { kv.txn(txn).await })
        })
        .await
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        if ttl.is_zero() || ttl > MAX_TTL {
            let reason = format!("a lease of {ttl:?} is asked for; allowed are up to {MAX_TTL:?}");
            return Err(StoreError::Invalid { reason });
        }
        // etcd counts seconds; a longer lease than asked for is allowed, a shorter one is not.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let granted = self
            .link
            .call(|client| Box::pin(async move { client.lease_client().grant(seconds, None).await }))
            .await
            .map_err(|fault| fault.into_error(LeaseId(0)))?;
        Ok(Lease { id: LeaseId(unsigned(granted.id())), ttl: Duration::from_secs(unsigned(granted.ttl())) })
    }

    pub(super) async fn renew(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        let renewed = self
            .call(lease, |client, id| {
                Box::pin(async move {
                    let (mut keeper, mut answers) = client.lease_client().keep_alive(id).await?;
                    // The first answer is consumed by the call above, which does not give its time: ask once more.
                    keeper.keep_alive().await?;
                    answers.message().await
                })
            })
            .await?;
        match renewed.map(|answer| answer.ttl()) {
            Some(ttl) if ttl > 0 => Ok(Duration::from_secs(unsigned(ttl))),
            Some(_) => {
                self.forget(lease);
                Err(StoreError::LeaseGone { lease })
            }
            None => Err(StoreError::Unreachable { reason: "etcd closed a renewal half-way".to_owned() }),
        }
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.forget(lease);
        let revoked = self.call(lease, |client, id| {
            Box::pin(async move { client.lease_client().revoke(id).await.map(|_| ()) })
        });
        match revoked.await {
            Ok(()) | Err(StoreError::LeaseGone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The lease's keys, if it lives.
    async fn keys_of(&self, lease: LeaseId) -> Result<Vec<Key>, StoreError> {
        let found = self
            .call(lease, |client, id| {
                let options = LeaseTimeToLiveOptions::new().with_keys();
                Box::pin(async move { client.lease_client().time_to_live(id, Some(options)).await })
            })
            .await?;
        if found.ttl() < 0 {
            self.forget(lease);
            return Err(StoreError::LeaseGone { lease });
        }
        Ok(found.keys().iter().filter_map(|key| self.keys.parse(key)).collect())
    }

    /// # Errors
    /// [`StoreError::LeaseGone`] unless the lease lives.
    pub(super) async fn alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.keys_of(lease).await.map(|_| ())
    }

    pub(super) async fn register(&self, lease: LeaseId, record: GroupRecord) -> Result<Epoch, StoreError> {
        let Some(value) = write_group(&record) else {
            return Err(StoreError::Invalid {
                reason: "the group's model name or address is too long".to_owned(),
            });
        };
        let held = self.keys_of(lease).await?;
        let other = held.iter().find_map(|key| match key {
            Key::Group(id) if *id != record.id => Some(id),
            Key::Group(_) | Key::Capacity(_) | Key::Session(_) => None,
        });
        if let Some(other) = other {
            let reason = format!("lease {lease} holds group {other} already; take one lease per group");
            return Err(StoreError::Invalid { reason });
        }
        if !held.is_empty() {
            self.end_registration(lease, &record.id).await?;
        }
        let id = lease_number(lease)?;
        let (key, capacity) =
            (self.keys.group(&record.id), write_capacity(&record.capacity, record.draining));
        let under = || Some(PutOptions::new().with_lease(id));
        let txn = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(key.clone(), value, under()),
                TxnOp::put(self.keys.capacity(&record.id), capacity, under()),
            ])
            .or_else([TxnOp::get(key, None)]);
        let response = self.txn(lease, txn).await?;
        let epoch = registered(&response, id, &record.id).map_err(|refused| match refused {
            Refused::Taken(holder, address) => StoreError::taken(holder, &address),
            Refused::Malformed(fault) => fault.into_error(lease),
        })?;
        self.remember(lease, Owner { group: record.id, epoch });
        Ok(epoch)
    }

    /// Ends the group's registration, then the claims under the lease: in this order none can follow.
    async fn end_registration(&self, lease: LeaseId, group: &GroupId) -> Result<(), StoreError> {
        self.forget(lease);
        let id = lease_number(lease)?;
        let (key, capacity) = (self.keys.group(group), self.keys.capacity(group));
        let txn = Txn::new()
            .when([Compare::lease(key.clone(), CompareOp::Equal, id)])
            .and_then([TxnOp::delete(key, None), TxnOp::delete(capacity, None)]);
        self.txn(lease, txn).await?;
        let claimed: Vec<SessionKey> = self
            .keys_of(lease)
            .await?
            .into_iter()
            .filter_map(|key| match key {
                Key::Session(session) => Some(session),
                Key::Group(_) | Key::Capacity(_) => None,
            })
            .collect();
        self.release(lease, &claimed).await.map(|_| ())
    }

    pub(super) async fn publish(
        &self,
        lease: LeaseId,
        group: &GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> Result<(), StoreError> {
        let id = lease_number(lease)?;
        let put = TxnOp::put(
            self.keys.capacity(group),
            write_capacity(&capacity, draining),
            Some(PutOptions::new().with_lease(id)),
        );
        let txn =
            Txn::new().when([Compare::lease(self.keys.group(group), CompareOp::Equal, id)]).and_then([put]);
        if self.txn(lease, txn).await?.succeeded() {
            return Ok(());
        }
        self.forget(lease);
        Err(self.unregistered(lease, group).await)
    }

    /// Deletes what the lease holds of `sessions`, which differ from each other, and says whether that was anything.
    pub(super) async fn release(&self, lease: LeaseId, sessions: &[SessionKey]) -> Result<bool, StoreError> {
        let id = lease_number(lease)?;
        let txns = sessions.chunks(claims::PER_TXN).map(|chunk| claims::release(&self.keys, id, chunk));
        let responses: Vec<TxnResponse> = stream::iter(txns.collect::<Vec<_>>())
            .map(|txn| self.txn(lease, txn))
            .buffered(IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(responses.iter().any(claims::released_any))
    }

    /// The owner that `group` is under `lease`: remembered, or asked for.
    pub(super) async fn owner(&self, lease: LeaseId, group: &GroupId) -> Result<Owner, StoreError> {
        if let Some(owner) = self.lock().get(&lease).filter(|owner| owner.group == *group) {
            return Ok(owner.clone());
        }
        let id = lease_number(lease)?;
        let key = self.keys.group(group);
        let found = self
            .call(lease, |client, _| {
                let (mut kv, key) = (client.kv_client(), key.clone());
                Box::pin(async move { kv.get(key, None).await })
            })
            .await?;
        match found.kvs().first().filter(|kv| kv.lease() == id) {
            Some(kv) => {
                let owner = Owner { group: group.clone(), epoch: Epoch(unsigned(kv.create_revision())) };
                self.remember(lease, owner.clone());
                Ok(owner)
            }
            None => Err(self.unregistered(lease, group).await),
        }
    }

    /// Why `group` is not registered under `lease`.
    async fn unregistered(&self, lease: LeaseId, group: &GroupId) -> StoreError {
        match self.alive(lease).await {
            Err(error) => error,
            Ok(()) => {
                let reason =
                    format!("group {group} is not registered under lease {lease}; register it first");
                StoreError::Invalid { reason }
            }
        }
    }

    fn remember(&self, lease: LeaseId, owner: Owner) {
        let mut owners = self.lock();
        if owners.len() >= MAX_REMEMBERED {
            // Rarely ever: what is forgotten is asked for again.
            owners.clear();
        }
        owners.insert(lease, owner);
    }

    pub(super) fn forget(&self, lease: LeaseId) {
        self.lock().remove(&lease);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Owner>> {
        // Nothing under the lock can panic half-way.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Refused {
    /// By whom, and where that one is.
    Taken(Owner, String),
    Malformed(Fault),
}

/// The epoch of a registration; also of one that had happened already, in a try whose answer was lost.
fn registered(response: &TxnResponse, lease: i64, group: &GroupId) -> Result<Epoch, Refused> {
    if response.succeeded() {
        let revision = response.header().map(|header| unsigned(header.revision()));
        return revision.map(Epoch).ok_or_else(|| Refused::Malformed(claims::malformed("no revision")));
    }
    let read = response.op_responses();
    let found = match read.first() {
        Some(TxnOpResponse::Get(found)) => found.kvs().first(),
        Some(TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_)) | None => None,
    };
    let Some(kv) = found else {
        return Err(Refused::Malformed(claims::malformed("a group is neither there nor not there")));
    };
    let epoch = Epoch(unsigned(kv.create_revision()));
    if kv.lease() == lease {
        return Ok(epoch);
    }
    let read = read_group(group.clone(), epoch, kv.value());
    let address = read.map_or_else(|_| "an address that cannot be read".to_owned(), |record| record.address);
    Err(Refused::Taken(Owner { group: group.clone(), epoch }, address))
}

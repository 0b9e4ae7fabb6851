//! The store in etcd: the authority of a cluster whose routers and workers come and go.
//!
//! Owns no state that matters: what is remembered of a registration only saves a question, and etcd checks it with
//! every claim. A lease is etcd's own, so what was made under it goes in the very revision in which it ends. Epochs are
//! the revisions at which groups were registered. Keys and values are described in `docs/etcd.md`.

mod claims;
mod fault;
mod fold;
mod keys;
mod link;
mod options;
mod registry;
#[cfg(test)]
mod tests;
mod values;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, GroupId, SessionKey};

use crate::store::{ClaimOutcome, Lease, LeaseId, MAX_BATCH, Store, StoreError, StoreFuture, Watch};
use keys::Keys;
#[cfg(feature = "dial")]
pub use link::Dial;
use link::Link;
pub use options::{EtcdOptions, InvalidEtcdOptions};
use registry::Registry;

/// Transactions of one `claim` or `release` that are on their way at once: etcd writes them to disk together.
const IN_FLIGHT: usize = 4;

/// The store in etcd. Connects with the first call; needs a tokio runtime then.
#[derive(Debug)]
pub struct EtcdStore {
    link: Arc<Link>,
    keys: Keys,
    registry: Registry,
}

impl EtcdStore {
    /// A store in the etcd that `options` name. Reads the certificates and connects to nothing yet.
    ///
    /// # Errors
    /// [`InvalidEtcdOptions`].
    pub fn new(options: &EtcdOptions) -> Result<Self, InvalidEtcdOptions> {
        Ok(Self::over(Link::new(options)?, options))
    }

    /// As [`EtcdStore::new`], over channels that `dial` makes: the options' endpoints are not used, and how long a
    /// channel may take to connect is its maker's to say.
    ///
    /// # Errors
    /// [`InvalidEtcdOptions`].
    #[cfg(feature = "dial")]
    pub fn dialled(options: &EtcdOptions, dial: Dial) -> Result<Self, InvalidEtcdOptions> {
        Ok(Self::over(Link::new(options)?.dialled(dial), options))
    }

    fn over(link: Link, options: &EtcdOptions) -> Self {
        let (link, keys) = (Arc::new(link), Keys::new(&options.prefix));
        let registry = Registry::new(Arc::clone(&link), keys.clone());
        Self { link, keys, registry }
    }

    async fn claim_all(
        &self,
        lease: LeaseId,
        group: &GroupId,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        bounded(sessions.len())?;
        let (once, places) = claims::distinct(sessions);
        let chunks: Vec<Vec<SessionKey>> = once.chunks(claims::PER_TXN).map(<[_]>::to_vec).collect();
        let outcomes: Vec<Vec<ClaimOutcome>> = stream::iter(chunks)
            .map(|chunk| self.claim_chunk(lease, group, chunk))
            .buffered(IN_FLIGHT)
            .try_collect()
            .await?;
        let outcomes = outcomes.concat();
        Ok(places.into_iter().map(|place| outcomes[place].clone()).collect())
    }

    /// One transaction; a second one if the group was registered again behind our back.
    async fn claim_chunk(
        &self,
        lease: LeaseId,
        group: &GroupId,
        chunk: Vec<SessionKey>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        let id = lease_number(lease)?;
        for _ in 0..2 {
            let owner = self.registry.owner(lease, group).await?;
            let txn = claims::claim(&self.keys, id, &owner, &chunk);
            let response = self
                .link
                .call(|client| {
                    let (mut kv, txn) = (client.kv_client(), txn.clone());
                    Box::pin(async move { kv.txn(txn).await })
                })
                .await
                .map_err(|fault| fault.into_error(lease))?;
            let outcomes =
                claims::outcomes(&response, id, chunk.len()).map_err(|fault| fault.into_error(lease))?;
            match outcomes {
                Some(outcomes) => return Ok(outcomes),
                None => self.registry.forget(lease),
            }
        }
        Err(StoreError::Unreachable { reason: format!("group {group} was registered again meanwhile") })
    }

    async fn release_all(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> Result<(), StoreError> {
        bounded(sessions.len())?;
        let (once, _) = claims::distinct(sessions);
        let released = self.registry.release(lease, &once).await?;
        // Where nothing was released the lease may have ended; where anything was it had not.
        if !released {
            self.registry.alive(lease).await?;
        }
        Ok(())
    }
}

/// etcd's number of a lease, which is positive.
fn lease_number(lease: LeaseId) -> Result<i64, StoreError> {
    match i64::try_from(lease.0) {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(StoreError::LeaseGone { lease }),
    }
}

fn bounded(found: usize) -> Result<(), StoreError> {
    if found <= MAX_BATCH {
        return Ok(());
    }
    Err(StoreError::Invalid { reason: format!("{found} sessions at once; at most {MAX_BATCH} are allowed") })
}

impl Store for EtcdStore {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        Box::pin(self.registry.grant(ttl))
    }

    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        Box::pin(self.registry.renew(lease))
    }

    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        Box::pin(self.registry.revoke(lease))
    }

    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        Box::pin(self.registry.register(lease, group))
    }

    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        Box::pin(self.registry.publish(lease, group, capacity, draining))
    }

    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        Box::pin(self.claim_all(lease, group, sessions))
    }

    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        Box::pin(self.release_all(lease, sessions))
    }

    fn watch(&self) -> StoreFuture<'_, Watch> {
        Box::pin(watch::watch(Arc::clone(&self.link), self.keys.clone()))
    }
}

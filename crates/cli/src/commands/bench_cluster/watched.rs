//! A store whose calls are counted, and whose claims are written into a history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, GroupId, SessionKey};
use hawser_placement::{ClaimOutcome, Lease, LeaseId, Store, StoreError, StoreFuture, Watch};

use super::history::History;

/// Calls so far.
#[derive(Debug, Default)]
pub struct Calls {
    grant: AtomicU64,
    renew: AtomicU64,
    revoke: AtomicU64,
    register: AtomicU64,
    publish: AtomicU64,
    claim: AtomicU64,
    claimed: AtomicU64,
    release: AtomicU64,
    watch: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

impl Calls {
    /// Calls by name; `claimed` counts the sessions of the calls of `claim`.
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        let counters = [
            ("grant", &self.grant),
            ("renew", &self.renew),
            ("revoke", &self.revoke),
            ("register", &self.register),
            ("publish", &self.publish),
            ("claim", &self.claim),
            ("claimed", &self.claimed),
            ("release", &self.release),
            ("watch", &self.watch),
        ];
        counters.into_iter().map(|(name, counter)| (name, counter.load(Ordering::Relaxed))).collect()
    }
}

/// The store of one or more groups.
#[derive(Debug)]
pub struct Watched {
    pub inner: Arc<dyn Store>,
    pub calls: Arc<Calls>,
    pub history: Arc<History>,
    pub clock: Clock,
    /// A call of the store for each claim.
    pub claims_singly: bool,
}

/// Calls of one group that are on their way at the same time, where each has one claim.
const SINGLY: usize = 64;

impl Watched {
    async fn ask(
        &self,
        lease: LeaseId,
        group: &GroupId,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        if !self.claims_singly {
            count(&self.calls.claim, 1);
            return self.inner.claim(lease, group, sessions).await;
        }
        count(&self.calls.claim, sessions.len());
        let claims = stream::iter(sessions).map(|session| self.inner.claim(lease, group, vec![session]));
        let outcomes: Vec<Vec<ClaimOutcome>> = claims.buffered(SINGLY).try_collect().await?;
        Ok(outcomes.concat())
    }
}

impl Store for Watched {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        count(&self.calls.grant, 1);
        let (from, granted) = (self.clock.now(), self.inner.grant(ttl));
        Box::pin(async move {
            let lease = granted.await?;
            self.history.holds(lease.id, from.after(lease.ttl));
            Ok(lease)
        })
    }

    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        count(&self.calls.renew, 1);
        let (from, renewed) = (self.clock.now(), self.inner.renew(lease));
        Box::pin(async move {
            let ttl = renewed.await?;
            self.history.holds(lease, from.after(ttl));
            Ok(ttl)
        })
    }

    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        count(&self.calls.revoke, 1);
        self.history.ending(lease, self.clock.now());
        self.inner.revoke(lease)
    }

    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        count(&self.calls.register, 1);
        self.inner.register(lease, group)
    }

    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        count(&self.calls.publish, 1);
        self.inner.publish(lease, group, capacity, draining)
    }

    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        count(&self.calls.claimed, sessions.len());
        let from = self.clock.now();
        Box::pin(async move {
            let outcomes = self.ask(lease, group, sessions.clone()).await?;
            let now = self.clock.now();
            for (session, _) in sessions.iter().zip(&outcomes).filter(|(_, won)| **won == ClaimOutcome::Won) {
                self.history.claimed((lease, group), session, from, now);
            }
            Ok(outcomes)
        })
    }

    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        count(&self.calls.release, 1);
        self.history.releasing(lease, &sessions, self.clock.now());
        self.inner.release(lease, sessions)
    }

    fn watch(&self) -> StoreFuture<'_, Watch> {
        count(&self.calls.watch, 1);
        self.inner.watch()
    }
}

//! The store in memory: the authority of a single process, or of a cluster whose router serves it to the workers.
//!
//! Owns the state behind one lock that is held for one operation at a time and never across an await. Expiry is
//! checked on every access and by a sweeping task, so that watchers learn of it without anyone asking.

mod log;
mod state;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use hawser_common::clock::{Clock, Tick};
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::tasks::Tasks;
use hawser_common::{Epoch, GroupId, SessionKey};

use crate::store::{ClaimOutcome, Lease, LeaseId, Store, StoreError, StoreFuture, Watch};
use state::State;

/// How often the sweeper looks for leases that ended.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Bounds and beginnings of an embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Epoch of the first registration. A store that other processes outlive must begin above every epoch that it
    /// gave before it was restarted: see [`EmbeddedOptions::served`].
    pub first_epoch: u64,
    /// Most leases, and so groups; more are refused.
    pub max_leases: usize,
    /// Most claims; more are refused.
    pub max_claims: usize,
    /// Changes remembered for watchers; one that is further behind gets a snapshot.
    pub max_events: usize,
    /// Seed of lease numbers; `None` draws it.
    pub seed: Option<u64>,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { first_epoch: 1, max_leases: 10_000, max_claims: 1_000_000, max_events: 16_384, seed: None }
    }
}

impl EmbeddedOptions {
    /// For a store that is served to other processes: epochs begin at the wall clock's seconds times 1,000, so that
    /// they go on growing over restarts as long as there are fewer than 1,000 registrations a second.
    #[must_use]
    pub fn served() -> Self {
        let seconds = u64::try_from(hawser_common::clock::unix_seconds()).unwrap_or(0);
        Self { first_epoch: seconds.saturating_mul(1_000).max(1), ..Self::default() }
    }
}

/// The store in memory. Watches end when it is dropped.
#[derive(Debug)]
pub struct EmbeddedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    clock: Clock,
    /// The revision, for watchers to wait on.
    revision: tokio::sync::watch::Sender<u64>,
}

impl EmbeddedStore {
    /// A store with its sweeper running on `tasks`. Needs a tokio runtime.
    #[must_use]
    pub fn start(clock: Clock, tasks: &Tasks, options: EmbeddedOptions) -> Arc<Self> {
        let store = Self::new(clock, options);
        let (shared, stopping) = (Arc::downgrade(&store.0), tasks.stopping());
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(SWEEP_EVERY);
            loop {
                // Both branches are cancel-safe: neither holds anything between polls.
                tokio::select! {
                    () = stopping.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                match shared.upgrade() {
                    Some(shared) => shared.with(|_, _| ()),
                    None => return,
                }
            }
        });
        Arc::new(store)
    }

    /// A store without a sweeper: leases end when someone looks.
    #[must_use]
    pub fn new(clock: Clock, options: EmbeddedOptions) -> Self {
        let seed = options.seed.unwrap_or_else(rand::random);
        let state = Mutex::new(State::new(options, seed));
        Self(Arc::new(Shared { state, clock, revision: tokio::sync::watch::Sender::new(0) }))
    }

    /// Ends the leases whose time is over. What the sweeper does.
    pub fn sweep(&self) {
        self.0.with(|_, _| ());
    }

    fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut State, Tick) -> Result<T, StoreError>,
    ) -> StoreFuture<'static, T> {
        std::future::ready(self.0.with(operation)).boxed()
    }
}

impl Shared {
    /// Runs `operation` on the state as of now, and wakes watchers if it changed.
    fn with<T>(&self, operation: impl FnOnce(&mut State, Tick) -> T) -> T {
        // A poisoned lock is taken: operations check everything before they change anything.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        state.expire(now);
        let result = operation(&mut state, now);
        let revision = state.revision();
        drop(state);
        // Only forwards: another thread may have got here first with a later revision.
        self.revision.send_if_modified(|seen| {
            let newer = revision > *seen;
            *seen = (*seen).max(revision);
            newer
        });
        result
    }
}

impl Store for EmbeddedStore {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        self.run(move |state, now| state.grant(ttl, now))
    }

    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        self.run(move |state, now| state.renew(lease, now))
    }

    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        self.run(move |state, _| {
            state.end(lease);
            Ok(())
        })
    }

    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        self.run(move |state, _| state.register(lease, group))
    }

    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        self.run(move |state, _| state.publish(lease, group, capacity, draining))
    }

    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        self.run(move |state, _| state.claim(lease, group, sessions))
    }

    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        self.run(move |state, _| state.release(lease, &sessions))
    }

    fn watch(&self) -> StoreFuture<'_, Watch> {
        std::future::ready(Ok(watch::watch(&self.0))).boxed()
    }
}

//! Keeping a worker group registered: what a leader needs of the store.
//!
//! Two tasks: one owns the lease (renewal, registration, capacity), one owns the claims (batches). The handle says
//! whether the lease may still be valid by the worker's own monotonic clock, so that a worker cut off from the store
//! fences itself before the store gives its sessions to another.

mod claims;
mod keeper;
mod report;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::hint::without_hint;
use hawser_common::tasks::Tasks;
use hawser_common::{Coded, Epoch, ErrorCode, GroupId, SessionKey};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::PlacementMetrics;
use crate::store::{LeaseId, Store, StoreError};
use claims::{Claims, Command};
use keeper::Keeper;
use report::Report;

/// Most claims and releases that wait for the store; more claims are refused, releases wait.
const MAX_WAITING: usize = 4096;

/// Where a group stands with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of the latest registration.
    pub epoch: Epoch,
    /// Counts the registrations of this process, from 1. Unlike an epoch it never comes again, not even where the store
    /// was lost and counts from the beginning: what was claimed under another term is not held.
    pub term: u64,
    /// The lease may be relied on before this time and not from then on, unless it is renewed first.
    pub valid_until: Tick,
}

impl Standing {
    /// Whether the group may serve at `now`.
    #[must_use]
    pub fn valid(&self, now: Tick) -> bool {
        now < self.valid_until
    }
}

/// The standing together with the lease behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    lease: LeaseId,
    pub(crate) standing: Standing,
}

/// Why a session was not claimed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    #[error("the session is owned by group {} (epoch {})", .0.group, .0.epoch)]
    Owned(Owner),
    #[error("the session cannot be claimed now: {}; try again", without_hint(reason))]
    Unavailable { reason: String },
    #[error("{reason}")]
    Exhausted { reason: String },
    #[error("the group has left the cluster; try another one")]
    Stopped,
}

impl Coded for ClaimError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Owned(_) => ErrorCode::StaleOwner,
            Self::Unavailable { .. } | Self::Stopped => ErrorCode::Unavailable,
            Self::Exhausted { .. } => ErrorCode::Exhausted,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Owned(owner) => Some(owner),
            Self::Unavailable { .. } | Self::Exhausted { .. } | Self::Stopped => None,
        }
    }
}

/// The times of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Of the lease.
    pub ttl: Duration,
    /// Longest that the first registration waits for a store that does not answer; `None`: as long as it takes.
    pub away_limit: Option<Duration>,
}

/// Starts registrations.
#[derive(Debug)]
pub struct Registration;

impl Registration {
    /// Registers a group and keeps it registered until [`RegistrationHandle::stop`], the last handle's end, or the
    /// stop of `tasks` (which revokes the lease at once: drain and stop first). The record's epoch is ignored.
    ///
    /// While another lease holds the group id, or the store does not answer, the first registration is tried again, for
    /// twice `ttl`.
    ///
    /// # Errors
    /// [`StoreError`], the last one.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Clock,
        tasks: &Tasks,
        record: GroupRecord,
        ttl: Duration,
    ) -> Result<RegistrationHandle, StoreError> {
        let terms = Terms { ttl, away_limit: Some(ttl * 2) };
        Self::start_observed(store, clock, tasks, record, terms, PlacementMetrics::default()).await
    }

    /// The same, under watch, and with a time of its own for a store that is away.
    ///
    /// # Errors
    /// As [`Registration::start`].
    pub async fn start_observed(
        store: Arc<dyn Store>,
        clock: Clock,
        tasks: &Tasks,
        record: GroupRecord,
        terms: Terms,
        metrics: PlacementMetrics,
    ) -> Result<RegistrationHandle, StoreError> {
        let mut parts = Parts::new(store, clock, (record, false), terms.ttl, metrics);
        parts.keeper.first_registration(terms.away_limit).await?;
        Ok(parts.run(tasks, terms.ttl))
    }

    /// As [`Registration::start_observed`], for a group that cannot serve yet: suspended, and registered once it is no
    /// longer ([`RegistrationHandle::suspend`]), for which it is tried for as long as it takes.
    #[must_use]
    pub fn start_suspended(
        store: Arc<dyn Store>,
        clock: Clock,
        tasks: &Tasks,
        record: GroupRecord,
        ttl: Duration,
        metrics: PlacementMetrics,
    ) -> RegistrationHandle {
        Parts::new(store, clock, (record, true), ttl, metrics).run(tasks, ttl)
    }
}

/// What a registration is made of, before it runs.
struct Parts {
    store: Arc<dyn Store>,
    clock: Clock,
    group: GroupId,
    report: watch::Sender<Report>,
    keeper: Keeper,
    metrics: PlacementMetrics,
}

impl Parts {
    fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        (record, suspended): (GroupRecord, bool),
        ttl: Duration,
        metrics: PlacementMetrics,
    ) -> Self {
        let (capacity, draining) = (record.capacity, record.draining);
        let report = watch::Sender::new(Report { capacity, draining, suspended });
        let group = record.id.clone();
        let mut keeper = Keeper::new(Arc::clone(&store), clock.clone(), record, ttl, report.subscribe());
        keeper.observed_by(metrics.clone());
        Self { store, clock, group, report, keeper, metrics }
    }

    fn run(self, tasks: &Tasks, ttl: Duration) -> RegistrationHandle {
        let Self { store, clock, group, report, keeper, metrics } = self;
        let held = keeper.held();
        metrics.observe(&held, &clock);
        let (commands, waiting) = mpsc::channel(MAX_WAITING);
        let (stop, done) = (tasks.stopping().child_token(), CancellationToken::new());
        let claims =
            Claims::new(store, clock, group.clone(), (held.clone(), waiting), keeper::claim_limit(ttl));
        let claims = claims.observed_by(metrics);
        tasks.spawn(claims.run(stop.clone()));
        let finished = done.clone().drop_guard();
        let stopping = stop.clone();
        tasks.spawn(async move {
            keeper.run(stopping).await;
            drop(finished);
        });
        RegistrationHandle { group, held, report: Arc::new(report), commands, stop, done }
    }
}

/// A kept registration. Clones stand for the same one.
#[derive(Clone, Debug)]
pub struct RegistrationHandle {
    group: GroupId,
    held: watch::Receiver<Held>,
    report: Arc<watch::Sender<Report>>,
    commands: mpsc::Sender<Command>,
    stop: CancellationToken,
    done: CancellationToken,
}

impl RegistrationHandle {
    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.group
    }

    /// Epoch of the latest registration. Claims made under an earlier one are gone.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.standing().epoch
    }

    /// Whether the lease may be relied on at `now`. If not, serve nothing.
    #[must_use]
    pub fn valid(&self, now: Tick) -> bool {
        self.standing().valid(now)
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        self.held.borrow().standing
    }

    /// Resolves when the standing has changed since this handle last waited. Never resolves after the end.
    pub async fn changed(&mut self) -> Standing {
        if self.held.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.held.borrow_and_update().standing
    }

    /// What the group has left; published at most once a second, and only what matters to a router.
    pub fn report(&self, capacity: Capacity) {
        self.report.send_if_modified(|report| {
            let changed = report.capacity != capacity;
            report.capacity = capacity;
            changed
        });
    }

    /// Leaves the cluster until further notice, claims included, or comes back to it with a new epoch: for a group that
    /// cannot serve for a while.
    pub fn suspend(&self, suspended: bool) {
        self.report
            .send_if_modified(|report| std::mem::replace(&mut report.suspended, suspended) != suspended);
    }

    /// Takes no new sessions from now on.
    pub fn drain(&self) {
        self.report.send_if_modified(|report| !std::mem::replace(&mut report.draining, true));
    }

    /// Claims a session, together with others that are waiting, and gives the epoch that it is held under.
    /// Dropping the future undoes a claim that it would have won.
    ///
    /// # Errors
    /// [`ClaimError`]; after any of them the session is not held.
    pub async fn claim(&self, session: SessionKey) -> Result<Epoch, ClaimError> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(Command::Claim { session: session.clone(), reply }).map_err(|error| {
            match error {
                mpsc::error::TrySendError::Full(_) => ClaimError::Exhausted {
                    reason: format!("{MAX_WAITING} claims wait for the placement store"),
                },
                mpsc::error::TrySendError::Closed(_) => ClaimError::Stopped,
            }
        })?;
        Waiting { session, answer: Some(answer), commands: &self.commands }.answer().await
    }

    /// Gives a session up. Tried until it is done or the lease has ended.
    pub async fn release(&self, session: SessionKey) {
        // After the end there is nothing left to release.
        let _ended = self.commands.send(Command::Release(session)).await;
    }

    /// Gives a session up before whatever asks for it next: at once in the order of claims, or, where too much waits
    /// for the store, not at all; the claim then lives as long as the lease does.
    pub fn give_up(&self, session: SessionKey) {
        if self.commands.try_send(Command::Release(session)).is_err() {
            tracing::debug!(group = %self.group, "a claim was not given up; it ends with the lease");
        }
    }

    /// As [`RegistrationHandle::release`], and waits until the store has given the session up. `false` where a claim of
    /// the same session overtook it, or the group has left the cluster: its lease then ends the claim.
    pub async fn release_now(&self, session: SessionKey) -> bool {
        let (done, answer) = oneshot::channel();
        self.commands.send(Command::ReleaseNow { session, done }).await.is_ok() && answer.await.is_ok()
    }

    /// Revokes the lease, and with it every claim, and waits until that is done or has failed.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.done.cancelled().await;
    }
}

/// A claim whose answer is waited for. Dropped with the answer in it, it undoes the claim.
struct Waiting<'a> {
    session: SessionKey,
    answer: Option<oneshot::Receiver<Result<Epoch, ClaimError>>>,
    commands: &'a mpsc::Sender<Command>,
}

impl Waiting<'_> {
    async fn answer(mut self) -> Result<Epoch, ClaimError> {
        let answer = match self.answer.as_mut() {
            Some(answer) => answer.await,
            None => return Err(ClaimError::Stopped),
        };
        self.answer = None;
        answer.unwrap_or(Err(ClaimError::Stopped))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        // From here on an answer cannot be sent; one that was sent before is seen here.
        answer.close();
        if let Ok(Ok(_)) = answer.try_recv() {
            // A full queue leaves a claim without a session, which the group keeps until its lease ends: harmless.
            let _full = self.commands.try_send(Command::Abandon(self.session.clone()));
        }
    }
}

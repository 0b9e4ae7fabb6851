//! The task that owns the lease: renews it, registers again when it was lost, publishes capacity, revokes at the end.
//!
//! A renewal counts from before it was sent, so that the worker's idea of the lease never outlives the store's. A
//! store that does not answer changes nothing until then; a lease that is gone means a new one and a new epoch.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::GroupRecord;
use hawser_common::said::Said;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::report::{Published, Report};
use super::{Held, Standing};
use crate::backoff;
use crate::metrics::{PlacementMetrics, Renewed};
use crate::store::{LeaseId, Store, StoreError};

const MAX_CALL: Duration = Duration::from_secs(5);

/// Longest that a call which keeps the lease may take. With a first try at a third of the lease's time at the latest,
/// a silence of three tenths of it is outlived even by a call that got lost in its last moment.
fn call_limit(ttl: Duration) -> Duration {
    (ttl / 8).min(MAX_CALL)
}

/// Longest that a call about claims may take.
pub(super) fn claim_limit(ttl: Duration) -> Duration {
    (ttl / 4).min(MAX_CALL)
}

/// How much earlier than the store the worker takes its lease for ended: clocks drift, and a check takes time.
fn margin(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_secs(1))
}

/// How long a first registration is tried. Pure; time is an argument.
#[derive(Debug)]
struct Patience {
    /// While another has the name.
    taken: Duration,
    /// While the store does not answer; `None`: as long as it takes.
    away: Option<Duration>,
    /// Since when it fails as it does now, and whether that is because the name is taken.
    since: Option<(Tick, bool)>,
}

impl Patience {
    /// How much longer it is worth trying after `error`; `None`: it is not.
    fn left(&mut self, error: &StoreError, now: Tick) -> Option<Duration> {
        let is_taken = match error {
            StoreError::Invalid { .. } | StoreError::Denied { .. } | StoreError::Full { .. } => return None,
            StoreError::GroupTaken { .. } => true,
            StoreError::Unreachable { .. } | StoreError::LeaseGone { .. } => false,
        };
        let since = match self.since {
            Some((since, before)) if before == is_taken => since,
            _ => now,
        };
        self.since = Some((since, is_taken));
        let limit = if is_taken { Some(self.taken) } else { self.away };
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(now.since(since)));
        (!left.is_zero()).then_some(left)
    }
}

pub(super) struct Keeper {
    store: Arc<dyn Store>,
    clock: Clock,
    record: GroupRecord,
    ttl: Duration,
    report: watch::Receiver<Report>,
    held: watch::Sender<Held>,
    published: Published,
    phase: Phase,
    /// When the phase's next call is due.
    due: Tick,
    failures: u32,
    /// Why it is not registered.
    said: Said,
    metrics: PlacementMetrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Holding,
    /// The store said that the lease is gone.
    Lost,
}

impl Keeper {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        record: GroupRecord,
        ttl: Duration,
        report: watch::Receiver<Report>,
    ) -> Self {
        let published = Published {
            report: Report { capacity: record.capacity, draining: record.draining, suspended: false },
            at: clock.now(),
        };
        let standing = Standing { epoch: record.epoch, term: 0, valid_until: Tick::default() };
        let held = watch::Sender::new(Held { lease: LeaseId(0), standing });
        let (phase, due) = (Phase::Lost, clock.now());
        let metrics = PlacementMetrics::default();
        let (failures, said) = (0, Said::default());
        Self { store, clock, record, ttl, report, held, published, phase, due, failures, said, metrics }
    }

    pub(super) fn observed_by(&mut self, metrics: PlacementMetrics) {
        self.metrics = metrics;
    }

    pub(super) fn held(&self) -> watch::Receiver<Held> {
        self.held.subscribe()
    }

    /// Registers for the first time, trying again where that may help: for twice the lease's time while another has the
    /// name, and for `away` while the store does not answer (`None`: as long as it takes).
    pub(super) async fn first_registration(&mut self, away: Option<Duration>) -> Result<(), StoreError> {
        let mut patience = Patience { taken: self.ttl * 2, away, since: None };
        loop {
            let Err(error) = self.register().await else { return Ok(()) };
            let Some(left) = patience.left(&error, self.clock.now()) else { return Err(error) };
            self.say(&error);
            tokio::time::sleep(self.backoff().min(left)).await;
        }
    }

    /// Keeps the lease until `stop`, then revokes it.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = self.wait();
            // Cancel-safe: a sleep holds nothing, and a report missed here is read in full by the next round.
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
                changed = self.report.changed() => {
                    if changed.is_err() {
                        // No handle is left, so the claims task ends and says stop.
                        stop.cancelled().await;
                    }
                    continue;
                }
            }
            // A call cut short by the stop may have happened; the revocation below ends what it made, and a lease
            // that was being granted ends by itself.
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.step() => {}
            }
        }
        self.fence();
        let Held { lease, standing } = *self.held.borrow();
        if standing.term == 0 {
            // It was never registered.
            return;
        }
        match self.call(self.store.revoke(lease)).await {
            Ok(()) => info!(group = %self.record.id, "left the cluster"),
            Err(error) => {
                warn!(group = %self.record.id, %error, "the lease was not revoked; it ends by itself");
            }
        }
    }

    fn wait(&self) -> Duration {
        let now = self.clock.now();
        if self.report.borrow().suspended {
            // At once, and then not before it is over.
            return if self.phase == Phase::Holding { Duration::ZERO } else { self.ttl };
        }
        let due = self.due.since(now);
        match self.phase {
            Phase::Holding => due.min(self.published.wait(&self.report.borrow(), now)),
            Phase::Lost => due,
        }
    }

    async fn step(&mut self) {
        let now = self.clock.now();
        if self.report.borrow().suspended {
            return self.leave().await;
        }
        match self.phase {
            Phase::Lost if self.due <= now => self.register_again().await,
            Phase::Lost => {}
            Phase::Holding => {
                if self.due <= now {
                    self.renew().await;
                }
                let report = *self.report.borrow_and_update();
                if self.phase == Phase::Holding && self.published.wait(&report, now).is_zero() {
                    self.publish(report).await;
                }
            }
        }
    }

    /// Gives the lease back, and with it every claim: others may have the sessions at once.
    async fn leave(&mut self) {
        if self.phase == Phase::Lost {
            return;
        }
        let lease = self.held.borrow().lease;
        self.lose();
        if let Err(error) = self.call(self.store.revoke(lease)).await {
            warn!(group = %self.record.id, %error, "the lease was not revoked; it ends by itself");
        }
    }

    async fn renew(&mut self) {
        let sent = self.clock.now();
        let lease = self.held.borrow().lease;
        match self.call(self.store.renew(lease)).await {
            Ok(ttl) => {
                self.metrics.renewed(Renewed::Held);
                self.hold(sent, ttl);
            }
            Err(StoreError::LeaseGone { .. }) => {
                self.metrics.renewed(Renewed::Gone);
                self.lose();
            }
            Err(error) => {
                self.metrics.renewed(Renewed::Failed);
                if self.failures == 0 {
                    warn!(group = %self.record.id, %error, "the lease was not renewed; trying again");
                }
                self.due = self.clock.now().after(self.backoff());
            }
        }
    }

    async fn publish(&mut self, report: Report) {
        let lease = self.held.borrow().lease;
        let published = self.store.publish(lease, &self.record.id, report.capacity, report.draining);
        match self.call(published).await {
            Err(StoreError::LeaseGone { .. }) => self.lose(),
            // A failed publication waits for its next turn like a successful one: it is advice, not truth.
            Err(error) => {
                tracing::debug!(group = %self.record.id, %error, "capacity was not published");
                self.published.at = self.clock.now();
            }
            Ok(()) => self.published = Published { report, at: self.clock.now() },
        }
    }

    async fn register_again(&mut self) {
        match self.register().await {
            Ok(()) => {
                let Standing { epoch, term, .. } = self.held.borrow().standing;
                info!(group = %self.record.id, %epoch, again = term > 1, "registered");
            }
            Err(error) => {
                self.say(&error);
                self.due = self.clock.now().after(self.backoff());
            }
        }
    }

    /// Says why the group is not registered, once for each reason.
    fn say(&mut self, error: &StoreError) {
        if !self.said.is_news(&error.to_string()) {
            return;
        }
        let waits_for = match error {
            StoreError::GroupTaken { .. } => "the one that has its name",
            _ => "the placement store",
        };
        warn!(group = %self.record.id, %error, "not registered yet; waiting for {waits_for}");
    }

    /// A new lease, and the group under it.
    async fn register(&mut self) -> Result<(), StoreError> {
        let sent = self.clock.now();
        let lease = self.call(self.store.grant(self.ttl)).await?;
        let report = *self.report.borrow();
        let (capacity, draining) = (report.capacity, report.draining);
        let record = GroupRecord { capacity, draining, ..self.record.clone() };
        match self.call(self.store.register(lease.id, record)).await {
            Ok(epoch) => {
                self.phase = Phase::Holding;
                self.published = Published { report, at: self.clock.now() };
                let term = self.held.borrow().standing.term + 1;
                let standing = Standing { epoch, term, valid_until: Tick::default() };
                self.held.send_modify(|held| *held = Held { lease: lease.id, standing });
                self.hold(sent, lease.ttl);
                self.metrics.registered(epoch);
                Ok(())
            }
            Err(error) => {
                // One that cannot be given back ends by itself.
                let is_revoked = self.call(self.store.revoke(lease.id)).await.is_ok();
                tracing::debug!(group = %self.record.id, is_revoked, "gave the unused lease back");
                Err(error)
            }
        }
    }

    fn hold(&mut self, sent: Tick, ttl: Duration) {
        self.failures = 0;
        self.said.clear();
        self.due = sent.after(backoff::jittered(ttl / 3));
        let valid_until = sent.after(ttl.saturating_sub(margin(ttl)));
        self.held.send_modify(|held| held.standing.valid_until = valid_until);
    }

    fn lose(&mut self) {
        warn!(group = %self.record.id, "the lease is gone: serving nothing until registered again");
        self.fence();
        self.phase = Phase::Lost;
        self.failures = 0;
        // A store that was away tells all workers at once.
        self.due = self.clock.now().after(backoff::spread(self.ttl / 10));
    }

    fn fence(&self) {
        self.held.send_modify(|held| held.standing.valid_until = Tick::default());
    }

    fn backoff(&mut self) -> Duration {
        let wait = backoff::after(self.failures, self.ttl / 4);
        self.failures += 1;
        wait
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        limited(call_limit(self.ttl), call).await
    }
}

/// A call of the store that fails after `limit`.
pub(super) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Unreachable { reason: format!("no answer within {limit:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use hawser_common::group::Owner;
    use hawser_common::{Epoch, GroupId};

    use super::*;

    #[test]
    fn a_store_that_is_away_is_waited_for_longer_than_a_name_that_is_taken() {
        let at = |second| Tick(Duration::from_secs(second));
        let seconds = |count| Some(Duration::from_secs(count));
        let away = StoreError::Unreachable { reason: "connection refused".to_owned() };
        let holder = Owner { group: GroupId::parse("g").unwrap(), epoch: Epoch(7) };
        let taken = StoreError::taken(holder, "http://there:1");
        let mut patience = Patience { taken: Duration::from_secs(20), away: seconds(600), since: None };
        assert_eq!(patience.left(&away, at(0)), seconds(600));
        assert_eq!(patience.left(&away, at(599)), seconds(1));
        // It is back, and the name is taken: that has only just begun.
        assert_eq!(patience.left(&taken, at(599)), seconds(20));
        assert_eq!(patience.left(&taken, at(618)), seconds(1));
        assert_eq!(patience.left(&taken, at(619)), None);
        assert_eq!(patience.left(&away, at(619)), seconds(600));
        assert_eq!(patience.left(&away, at(1219)), None);
        let mut endless = Patience { away: None, since: None, ..patience };
        assert_eq!(endless.left(&away, at(0)), Some(Duration::MAX));
        assert_eq!(endless.left(&away, at(1_000_000)), Some(Duration::MAX));
        assert_eq!(Patience { away: seconds(0), ..endless }.left(&away, at(5)), None, "not at all");
        let denied = StoreError::Denied { reason: "no operator".to_owned() };
        assert_eq!(Patience { taken: MAX_CALL, away: None, since: None }.left(&denied, at(0)), None);
    }
}

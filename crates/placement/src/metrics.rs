//! What a group measures of its standing with the store.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::telemetry::{Counter, CounterBy, Gauge, Histogram, Meter, Metric, SHORT_S};
use hawser_common::{label, metrics};
use tokio::sync::watch;

use crate::registration::Held;

label! {
    /// What became of a claim.
    pub(crate) enum Claimed: "outcome" {
        Won = "won",
        /// Another group owns the session.
        Lost = "lost",
        /// The store did not answer, or refused.
        Failed = "failed",
    }
}

label! {
    /// What became of a renewal.
    pub(crate) enum Renewed: "outcome" {
        Held = "held",
        /// The store did not answer; it is tried again.
        Failed = "failed",
        /// The lease has ended.
        Gone = "gone",
    }
}

metrics! {
    CLAIMS =
        Metric::counter("hawser.placement.claims", "{session}", "Sessions claimed in the store, by outcome.")
            .by("outcome");
    BATCH = Metric::histogram(
        "hawser.placement.claim_batch",
        "{session}",
        &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0],
        "Sessions that one call of the store claimed.",
    );
    CLAIM_TIME = Metric::histogram(
        "hawser.placement.claim_duration",
        "s",
        SHORT_S,
        "Time of one call that claims sessions.",
    );
    RENEWALS =
        Metric::counter("hawser.placement.lease_renewals", "{call}", "Renewals of the lease, by outcome.")
            .by("outcome");
    REGISTRATIONS = Metric::counter(
        "hawser.placement.registrations",
        "{registration}",
        "Registrations: one at the start, each further one after a lease was lost.",
    );
    VALID =
        Metric::gauge("hawser.placement.lease_valid", "", "1 while the lease may be relied on, else 0.");
    REMAINING = Metric::gauge(
        "hawser.placement.lease_remaining",
        "s",
        "Time until the group serves nothing, unless the lease is renewed first.",
    );
    EPOCH = Metric::gauge("hawser.placement.epoch", "", "Epoch of the latest registration.");
}

/// Instruments of a group's registration. Cheap to clone; the default ones do nothing.
#[derive(Clone, Debug)]
pub struct PlacementMetrics {
    meter: Meter,
    claims: CounterBy<Claimed>,
    batch: Histogram,
    claim_time: Histogram,
    renewals: CounterBy<Renewed>,
    registrations: Counter,
    epoch: Gauge,
}

impl Default for PlacementMetrics {
    fn default() -> Self {
        Self::new(&Meter::default())
    }
}

impl PlacementMetrics {
    /// Of the group that `meter` stands for.
    #[must_use]
    pub fn new(meter: &Meter) -> Self {
        Self {
            meter: meter.clone(),
            claims: meter.counter_by(&CLAIMS),
            batch: meter.histogram(&BATCH),
            claim_time: meter.histogram(&CLAIM_TIME),
            renewals: meter.counter_by(&RENEWALS),
            registrations: meter.counter(&REGISTRATIONS),
            epoch: meter.gauge(&EPOCH),
        }
    }

    /// Shows the lease whenever somebody wants to know.
    pub(crate) fn observe(&self, held: &watch::Receiver<Held>, clock: &Clock) {
        let left = {
            let (held, clock) = (held.clone(), clock.clone());
            // Once the keeper has ended there is no lease to speak of.
            move || {
                let standing = held.has_changed().is_ok().then(|| held.borrow().standing)?;
                Some(standing.valid_until.since(clock.now()))
            }
        };
        let remaining = left.clone();
        self.meter.observe(&REMAINING, move || remaining().map(|left| left.as_secs_f64()));
        self.meter.observe(&VALID, move || left().map(|left| f64::from(u8::from(!left.is_zero()))));
    }

    pub(crate) fn registered(&self, epoch: hawser_common::Epoch) {
        self.registrations.add(1);
        self.epoch.set_count(epoch.0);
    }

    pub(crate) fn renewed(&self, what: Renewed) {
        self.renewals.add(what, 1);
    }

    /// One call that claimed `sessions`.
    pub(crate) fn asked(&self, sessions: usize, took: Duration) {
        self.batch.count(sessions as u64);
        self.claim_time.time(took);
    }

    pub(crate) fn claimed(&self, what: Claimed, sessions: usize) {
        self.claims.add(what, sessions as u64);
    }
}

//! How long a caller still waits.

use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use tonic::metadata::MetadataMap;

/// The router's own timer goes off this much before the caller's, so that the caller is answered by the router and not
/// by the transport, whose timers say CANCELLED.
const LEAD: Duration = Duration::from_millis(5);

/// A point in time that a call must end by, if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Tick>);

impl Deadline {
    pub(crate) fn of(metadata: &MetadataMap, clock: &Clock) -> Self {
        let left = hawser_proto::deadline(metadata);
        Self(left.map(|left| clock.now().after(left.saturating_sub(LEAD))))
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The deadline, or `limit` from now if that is sooner.
    pub(crate) fn at_most(self, limit: Duration, clock: &Clock) -> Self {
        let latest = clock.now().after(limit);
        Self(Some(self.0.map_or(latest, |until| until.min(latest))))
    }

    /// Time left; `None` where there is no deadline.
    pub(crate) fn left(self, clock: &Clock) -> Option<Duration> {
        self.0.map(|until| until.since(clock.now()))
    }

    /// `future`, or `None` if the deadline passes first.
    pub(crate) async fn bound<F: Future>(self, clock: &Clock, future: F) -> Option<F::Output> {
        match self.left(clock) {
            Some(left) => tokio::time::timeout(left, future).await.ok(),
            None => Some(future.await),
        }
    }
}

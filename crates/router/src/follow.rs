//! The task that follows the store: watch, apply, watch again.
//!
//! While the store cannot be watched the view stays as it is, so that turns of known sessions go on. Now and then all is
//! listed anew, so that a change that was missed, wherever, is not missed for good.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_common::said::Said;
use hawser_placement::{Change, Store, StoreError, Watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::RouterMetrics;
use crate::reachable::Reachable;
use crate::roster::Roster;
use crate::upstream::Upstream;
use crate::view::View;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Longest that a list beside a running watch may take to begin.
const RELIST_LIMIT: Duration = Duration::from_secs(5);

/// What a store is followed for.
pub(crate) struct Follower {
    pub(crate) view: Arc<View>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) reachable: Arc<Reachable>,
    pub(crate) metrics: RouterMetrics,
    /// Between two lists of everything; `None`: never but after a failure.
    pub(crate) relist: Option<Duration>,
}

/// What people know of how the store is. Pure.
#[derive(Debug, Default)]
struct Contact {
    has_answered: bool,
    said: Said,
}

impl Contact {
    /// What to say, if anything, when a try or a watch has failed.
    fn failed(&mut self, reason: &str) -> Option<&'static str> {
        let news = if self.has_answered {
            "lost the placement store; known sessions go on"
        } else {
            "cannot reach the placement store yet; trying on, and nothing is served until it answers"
        };
        self.said.is_news(reason).then_some(news)
    }

    /// What to say, if anything, when it answers.
    fn answers(&mut self) -> Option<&'static str> {
        let before = std::mem::replace(&mut self.has_answered, true);
        let was_away = self.said.clear();
        was_away.then_some(if before {
            "the placement store answers again"
        } else {
            "the placement store answers"
        })
    }
}

/// Feeds the view until `stop`.
pub(crate) async fn follow(store: Arc<dyn Store>, follower: Follower, stop: CancellationToken) {
    let (mut failures, mut contact) = (0u32, Contact::default());
    let mut roster = Roster::default();
    loop {
        // Dropping a watch, or a call for one, leaves nothing behind.
        let watched = tokio::select! {
            () = stop.cancelled() => return,
            watched = store.watch() => watched,
        };
        let error = match watched {
            Err(error) => Some(error),
            Ok(watch) => {
                if let Some(news) = contact.answers() {
                    info!("{news}");
                }
                failures = 0;
                tokio::select! {
                    () = stop.cancelled() => return,
                    error = follower.drain(watch, &*store, &mut roster) => error,
                }
            }
        };
        follower.metrics.lost_the_store();
        let reason = error.map_or_else(|| "the watch ended".to_owned(), |error| error.to_string());
        if let Some(news) = contact.failed(&reason) {
            warn!(%reason, "{news}");
        }
        let wait = FIRST_BACKOFF * 2u32.saturating_pow(failures.min(10));
        failures += 1;
        // A random part of up to half, so that routers do not come back all at once.
        let wait = wait.min(MAX_BACKOFF).mul_f64(1.0 - rand::random::<f64>() / 2.0);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Follower {
    /// Applies updates until the watch ends, and says why it did.
    async fn drain(&self, mut watch: Watch, store: &dyn Store, roster: &mut Roster) -> Option<StoreError> {
        let mut due = Box::pin(tokio::time::sleep(self.pause()));
        loop {
            // A watch gives an update that was not taken to the next who asks.
            let update = tokio::select! {
                update = watch.next() => update,
                () = &mut due => {
                    match tokio::time::timeout(RELIST_LIMIT, store.watch()).await {
                        // It begins with all that there is.
                        Ok(Ok(anew)) => watch = anew,
                        Ok(Err(error)) => debug!(%error, "could not list anew"),
                        Err(_) => debug!("listing anew took too long"),
                    }
                    due.set(tokio::time::sleep(self.pause()));
                    continue;
                }
            };
            match update {
                Some(Ok(update)) => {
                    if matches!(update.change, Change::Snapshot(_)) {
                        self.metrics.listed();
                    }
                    for note in roster.heard(&update) {
                        info!("{note}");
                    }
                    for unreachable in self.reachable.heard(&update) {
                        warn!("{unreachable}");
                    }
                    if self.view.apply(update) {
                        self.upstream.keep(&self.view.groups());
                    }
                }
                Some(Err(error)) => return Some(error),
                None => return None,
            }
        }
    }

    /// Until the next list, a random fifth more or less, so that routers do not list at the same time.
    fn pause(&self) -> Duration {
        self.relist.map_or(Duration::MAX, |relist| relist.mul_f64(0.8 + 0.4 * rand::random::<f64>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_lost_only_if_it_was_there() {
        let mut contact = Contact::default();
        let told = contact.failed("connection refused").unwrap();
        assert!(told.contains("cannot reach") && told.contains("yet") && !told.contains("lost"), "{told}");
        assert_eq!(contact.failed("connection refused"), None, "once for each reason");
        assert!(contact.failed("not let in").unwrap().contains("cannot reach"));
        assert_eq!(contact.answers(), Some("the placement store answers"));
        assert_eq!(contact.answers(), None);
        assert!(contact.failed("connection refused").unwrap().contains("lost"));
        assert_eq!(contact.failed("connection refused"), None);
        assert_eq!(contact.answers(), Some("the placement store answers again"));
        assert!(contact.failed("connection refused").is_some(), "each time anew");
        assert_eq!(Contact::default().answers(), None, "a store that is there is no news");
    }
}

//! Watching an embedded store.

use std::sync::{Arc, Weak};

use futures_util::StreamExt as _;
use futures_util::stream::unfold;

use super::Shared;
use crate::store::{Change, Update, Watch};

/// Most events of one update.
const MAX_EVENTS: usize = 1024;

struct Watcher {
    store: Weak<Shared>,
    /// Revision that the subscriber has seen; `None` before its first snapshot.
    seen: Option<u64>,
    revision: tokio::sync::watch::Receiver<u64>,
}

/// A snapshot at the first poll, then changes. Ends when the store is dropped.
pub(super) fn watch(store: &Arc<Shared>) -> Watch {
    let revision = store.revision.subscribe();
    let watcher = Watcher { store: Arc::downgrade(store), seen: None, revision };
    unfold(watcher, |mut watcher| async move {
        let update = watcher.next().await?;
        Some((Ok(update), watcher))
    })
    .boxed()
}

impl Watcher {
    async fn next(&mut self) -> Option<Update> {
        loop {
            // Marked before reading: a change in between leads to one reading more, never to a lost one.
            self.revision.mark_unchanged();
            if let Some(update) = self.store.upgrade()?.read(self.seen) {
                self.seen = Some(update.revision);
                return Some(update);
            }
            self.revision.changed().await.ok()?;
        }
    }
}

impl Shared {
    /// What a subscriber that has seen revision `seen` is told next; `None` if it has seen everything.
    fn read(&self, seen: Option<u64>) -> Option<Update> {
        self.with(|state, _| {
            let events = match seen {
                Some(seen) if seen == state.revision() => return None,
                Some(seen) => state.log().after(seen, MAX_EVENTS).map(|events| (seen, events)),
                None => None,
            };
            Some(match events {
                Some((seen, events)) => {
                    Update { revision: seen + events.len() as u64, change: Change::Events(events) }
                }
                None => Update { revision: state.revision(), change: Change::Snapshot(state.snapshot()) },
            })
        })
    }
}

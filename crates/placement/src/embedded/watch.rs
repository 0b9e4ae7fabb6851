//! Watching an embedded store.

use std::sync::{Arc, Weak};

use futures_util::StreamExt as _;
use futures_util::stream::unfold;

use super::Shared;
use super::state::Frozen;
use crate::store::{Change, Event, Snapshot, Update, Watch};

/// Most events of one update.
const MAX_EVENTS: usize = 1024;
/// Claims of a snapshot that are written out without letting others run.
const PORTION: usize = 1024;

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
            let news = self.store.upgrade()?.read(self.seen);
            let update = match news {
                News::None => None,
                News::Events(revision, events) => Some(Update { revision, change: Change::Events(events) }),
                News::State(frozen) => Some(written_out(frozen).await),
            };
            if let Some(update) = update {
                self.seen = Some(update.revision);
                return Some(update);
            }
            self.revision.changed().await.ok()?;
        }
    }
}

/// What there is for a subscriber.
enum News {
    None,
    /// The next events, and the revision after them.
    Events(u64, Vec<Event>),
    State(Frozen),
}

impl Shared {
    /// What a subscriber that has seen revision `seen` is told next.
    fn read(&self, seen: Option<u64>) -> News {
        self.with(|state, _| match seen {
            Some(seen) if seen == state.revision() => News::None,
            Some(seen) => match state.log().after(seen, MAX_EVENTS) {
                Some(events) => News::Events(seen + events.len() as u64, events),
                None => News::State(state.freeze()),
            },
            None => News::State(state.freeze()),
        })
    }
}

/// A snapshot claim by claim: outside the lock and in portions, because there may be a million.
async fn written_out(frozen: Frozen) -> Update {
    let mut claims = Vec::with_capacity(frozen.claims.iter().map(|(_, sessions)| sessions.len()).sum());
    for (owner, sessions) in frozen.claims {
        for session in sessions.iter() {
            claims.push((session.clone(), owner.clone()));
            if claims.len() % PORTION == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
    let change = Change::Snapshot(Snapshot { groups: frozen.groups, claims });
    Update { revision: frozen.revision, change }
}

//! One stream of watches: history from the revision asked for, then every change, and signs of life when asked.
//!
//! A watch from a forgotten revision opens like any other; its next message says that it is over, with the revision
//! that is left and without a reason.

use std::collections::BTreeMap;

use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::FakeEtcd;
use super::mvcc::Range;

/// Messages that a reader may be behind.
pub(super) const BEHIND: usize = 16;
/// What a sign of life has for the number of its watch.
const EVERY_WATCH: i64 = -1;

type Told = mpsc::Sender<Result<PbWatchResponse, Status>>;

struct Watched {
    range: Range,
    /// First revision that is not told yet.
    next: i64,
}

/// The reader is gone.
struct Gone;

struct Watches {
    etcd: FakeEtcd,
    told: Told,
    open: BTreeMap<i64, Watched>,
    next_id: i64,
}

pub(super) async fn run(etcd: FakeEtcd, mut requests: Streaming<PbWatchRequest>, told: Told) {
    let mut changes = etcd.changes.subscribe();
    let mut watches = Watches { etcd, told, open: BTreeMap::new(), next_id: 0 };
    loop {
        changes.mark_unchanged();
        if watches.flush().await.is_err() {
            return;
        }
        // Cancel-safe: what has arrived of a message stays in the stream, and a change is looked at above.
        tokio::select! {
            biased;
            request = requests.message() => match request {
                Ok(Some(request)) => if watches.obey(request).await.is_err() { return },
                Ok(None) | Err(_) => return,
            },
            changed = changes.changed() => if changed.is_err() { return },
            () = watches.told.closed() => return,
        }
    }
}

impl Watches {
    async fn tell(&self, response: PbWatchResponse) -> Result<(), Gone> {
        let header = self.etcd.with(|state, _| state.header()).result;
        self.told.send(Ok(PbWatchResponse { header, ..response })).await.map_err(|_| Gone)
    }

    async fn obey(&mut self, request: PbWatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                let revision = self.etcd.revision();
                let next = if create.start_revision > 0 { create.start_revision } else { revision + 1 };
                let watch_id = self.next_id;
                self.next_id += 1;
                self.open.insert(watch_id, Watched { range: Range::new(create.key, create.range_end), next });
                self.tell(PbWatchResponse { watch_id, created: true, ..PbWatchResponse::default() }).await
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                self.open.remove(&cancel.watch_id);
                let watch_id = cancel.watch_id;
                self.tell(PbWatchResponse { watch_id, canceled: true, ..PbWatchResponse::default() }).await
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                self.flush().await?;
                self.tell(PbWatchResponse { watch_id: EVERY_WATCH, ..PbWatchResponse::default() }).await
            }
            None => Ok(()),
        }
    }

    /// Tells what is not told yet.
    async fn flush(&mut self) -> Result<(), Gone> {
        let faults = self.etcd.faults();
        if faults.watches_held {
            return Ok(());
        }
        let ids: Vec<i64> = self.open.keys().copied().collect();
        for watch_id in ids {
            let Some(watched) = self.open.get_mut(&watch_id) else { continue };
            let (replayed, revision, compact_revision) = self
                .etcd
                .with(|state, _| {
                    let replayed = state.mvcc.replay(&watched.range, watched.next);
                    (replayed, state.mvcc.revision(), state.mvcc.compacted())
                })
                .result;
            let Ok(mut events) = replayed else {
                self.open.remove(&watch_id);
                let over = PbWatchResponse {
                    watch_id,
                    canceled: true,
                    compact_revision,
                    ..PbWatchResponse::default()
                };
                self.tell(over).await?;
                continue;
            };
            watched.next = watched.next.max(revision + 1);
            if faults.deletions_lost {
                events.retain(|event: &PbEvent| event.r#type == 0);
            }
            if !events.is_empty() {
                self.tell(PbWatchResponse { watch_id, events, ..PbWatchResponse::default() }).await?;
            }
        }
        Ok(())
    }
}

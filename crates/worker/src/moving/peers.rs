//! The other groups, as the store's watch tells of them while somebody asks, and which of them a session goes to.
//!
//! Never decides by what a group says of its model: only the group itself knows the digest, and refuses what is not its
//! own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_common::GroupId;
use hawser_common::group::GroupRecord;
use hawser_common::tasks::Tasks;
use hawser_placement::{Change, Event, Store, Update};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Longest wait for the first news of the store.
const NEWS: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(300);
/// The watch ends when nobody has asked for this long: it tells of every claim of the cluster.
const UNASKED: Duration = Duration::from_secs(60);

type Groups = HashMap<GroupId, GroupRecord>;

#[derive(Debug)]
pub(crate) struct Peers {
    store: Arc<dyn Store>,
    /// `None`: nothing was heard yet.
    known: Arc<watch::Sender<Option<Groups>>>,
    watching: Arc<Mutex<Watching>>,
}

#[derive(Debug, Default)]
struct Watching {
    is_on: bool,
    /// Since the watch was last looked after.
    is_asked: bool,
}

fn lock(watching: &Mutex<Watching>) -> MutexGuard<'_, Watching> {
    watching.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Arc::new(watch::Sender::new(None)), watching: Arc::default() }
    }

    /// All groups. Begins to watch the store where that is not done yet; empty where it does not answer in time.
    pub(super) async fn groups(&self, tasks: &Tasks) -> Vec<GroupRecord> {
        let was_on = {
            let mut watching = lock(&self.watching);
            watching.is_asked = true;
            std::mem::replace(&mut watching.is_on, true)
        };
        if !was_on {
            let (store, known, stop) = (Arc::clone(&self.store), Arc::clone(&self.known), tasks.stopping());
            let watching = Arc::clone(&self.watching);
            tasks.spawn(async move {
                // Cancel-safe: dropping a watch leaves nothing behind.
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = follow(store, &known, stop.clone()) => {}
                    () = unasked(&known, &watching) => {}
                }
            });
        }
        let mut news = self.known.subscribe();
        let heard = tokio::time::timeout(NEWS, news.wait_for(Option::is_some)).await;
        let groups = heard.ok().and_then(Result::ok).and_then(|known| known.clone());
        groups.map_or_else(Vec::new, |groups| groups.into_values().collect())
    }
}

/// Resolves when nobody has asked for a while; the next one to ask begins anew.
async fn unasked(known: &watch::Sender<Option<Groups>>, watching: &Mutex<Watching>) {
    loop {
        tokio::time::sleep(UNASKED).await;
        let mut watching = lock(watching);
        if !std::mem::take(&mut watching.is_asked) {
            watching.is_on = false;
            known.send_replace(None);
            return;
        }
    }
}

async fn follow(store: Arc<dyn Store>, known: &watch::Sender<Option<Groups>>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match store.watch().await {
            Ok(mut watch) => {
                while let Some(Ok(update)) = watch.next().await {
                    known.send_modify(|groups| apply(groups.get_or_insert_default(), update));
                }
            }
            Err(error) => tracing::debug!(%error, "the store cannot be watched"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn apply(groups: &mut Groups, update: Update) {
    match update.change {
        Change::Snapshot(snapshot) => {
            *groups = snapshot.groups.into_iter().map(|group| (group.id.clone(), group)).collect();
        }
        Change::Events(events) => {
            for event in events {
                match event {
                    Event::GroupChanged(group) => {
                        groups.insert(group.id.clone(), group);
                    }
                    Event::GroupGone(group) => {
                        groups.remove(&group);
                    }
                    Event::Claimed(..) | Event::Released(_) => {}
                }
            }
        }
    }
}

/// Groups that a session with `rows` live rows may go to, the one with the most room first. Those with less room than
/// that by their own last word come last: they may have more by now.
pub(super) fn candidates(
    groups: Vec<GroupRecord>,
    own: &GroupId,
    model: &str,
    rows: usize,
) -> Vec<GroupRecord> {
    let may = |group: &GroupRecord| group.id != *own && group.model == model && !group.draining;
    let mut candidates: Vec<GroupRecord> = groups.into_iter().filter(may).collect();
    let room = |group: &GroupRecord| group.capacity.slots_free.saturating_add(group.capacity.slots_idle);
    candidates.retain(|group| group.capacity.slots_total >= rows as u64);
    candidates.sort_by(|a, b| room(b).cmp(&room(a)).then_with(|| a.id.cmp(&b.id)));
    candidates
}

#[cfg(test)]
mod tests {
    use hawser_common::Epoch;
    use hawser_common::group::Capacity;

    use super::*;

    #[test]
    fn a_session_goes_to_the_most_room_of_its_model() {
        let record = |id: &str, model: &str, free, draining| GroupRecord {
            id: GroupId::parse(id).unwrap(),
            model: model.to_owned(),
            address: format!("http://{id}"),
            tp: 1,
            epoch: Epoch(1),
            capacity: Capacity { slots_total: 100, slots_free: free, ..Capacity::default() },
            draining,
        };
        let groups = vec![
            record("own", "m", 99, false),
            record("b", "m", 5, false),
            record("c", "m", 50, false),
            record("d", "other", 90, false),
            record("e", "m", 80, true),
        ];
        let own = GroupId::parse("own").unwrap();
        let ids = |rows| -> Vec<String> {
            candidates(groups.clone(), &own, "m", rows).iter().map(|group| group.id.to_string()).collect()
        };
        assert_eq!(ids(10), ["c", "b"]);
        assert!(ids(101).is_empty(), "no pool is as large");
    }
}

//! The other groups, as the store's watch tells of them while somebody asks, and which of them a session goes to.
//!
//! Never decides by what a group says of its model: only the group itself knows the digest, and refuses what is not its
//! own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_common::group::GroupRecord;
use hawser_common::tasks::Tasks;
use hawser_common::{GroupId, SessionKey};
use hawser_placement::{Change, Event, Store, Update};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

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

/// Groups that a session with `rows` live rows may go to, the first choice first. Those with less room than that by
/// their own last word come last: they may have more by now.
///
/// Each session draws its order, in which a group is first as often as it has room (Efraimidis and Spirakis, "Weighted
/// random sampling with a reservoir", 2006). A group that drains has many sessions and numbers that are a second old: the
/// one with most room would get them all.
pub(super) fn candidates(
    groups: Vec<GroupRecord>,
    (own, model): (&GroupId, &str),
    session: &SessionKey,
    rows: usize,
) -> Vec<GroupRecord> {
    let may = |group: &GroupRecord| group.id != *own && group.model == model && !group.draining;
    let mut candidates: Vec<GroupRecord> = groups.into_iter().filter(may).collect();
    candidates.retain(|group| group.capacity.slots_total >= rows as u64);
    let place = |group: &GroupRecord| {
        let room = group.capacity.slots_free.saturating_add(group.capacity.slots_idle);
        let room = room.saturating_sub(group.capacity.slots_reserved);
        let waits = -drawn(session, &group.id).ln() / room.max(1) as f64;
        (room < rows as u64, waits)
    };
    candidates.sort_by(|a, b| {
        let ((a_is_full, a_waits), (b_is_full, b_waits)) = (place(a), place(b));
        a_is_full.cmp(&b_is_full).then(a_waits.total_cmp(&b_waits))
    });
    candidates
}

/// A number above 0 and at most 1, the same whenever it is asked for.
fn drawn(session: &SessionKey, group: &GroupId) -> f64 {
    let text = format!("{}/{}/{group}", session.tenant, session.session);
    let bits = xxh3_64(text.as_bytes()) >> 11;
    (bits + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use hawser_common::group::Capacity;
    use hawser_common::{Epoch, SessionId, TenantId};

    use super::*;

    fn record(id: &str, model: &str, free: u64, draining: bool) -> GroupRecord {
        GroupRecord {
            id: GroupId::parse(id).unwrap(),
            model: model.to_owned(),
            address: format!("http://{id}"),
            tp: 1,
            epoch: Epoch(1),
            capacity: Capacity { slots_total: 100, slots_free: free, ..Capacity::default() },
            draining,
        }
    }

    fn session(number: usize) -> SessionKey {
        SessionKey { tenant: TenantId::single(), session: SessionId::parse(&format!("s{number}")).unwrap() }
    }

    fn ids(groups: &[GroupRecord], session: &SessionKey, rows: usize) -> Vec<String> {
        let own = GroupId::parse("own").unwrap();
        let candidates = candidates(groups.to_vec(), (&own, "m"), session, rows);
        candidates.iter().map(|group| group.id.to_string()).collect()
    }

    #[test]
    fn a_session_goes_to_a_group_of_its_model_that_has_room() {
        let groups = [
            record("own", "m", 99, false),
            record("b", "m", 5, false),
            record("c", "m", 50, false),
            record("d", "other", 90, false),
            record("e", "m", 80, true),
        ];
        for number in 0..100 {
            assert_eq!(ids(&groups, &session(number), 10), ["c", "b"], "one without room comes last");
            assert!(ids(&groups, &session(number), 101).is_empty(), "no pool is as large");
        }
    }

    #[test]
    fn sessions_of_a_group_that_drains_spread_by_room() {
        let groups = [record("a", "m", 80, false), record("b", "m", 40, false), record("c", "m", 40, false)];
        let mut first = HashMap::new();
        for number in 0..4_000 {
            *first.entry(ids(&groups, &session(number), 10)[0].clone()).or_insert(0) += 1;
        }
        assert!((1_850..2_150).contains(&first["a"]) && (900..1_100).contains(&first["b"]), "{first:?}");
        let number = |of: &str| first.get(of).copied().unwrap_or(0);
        assert_eq!(number("a") + number("b") + number("c"), 4_000);
    }
}

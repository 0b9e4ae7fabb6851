//! What happens while etcd is away, and after it is back.

use futures_util::StreamExt as _;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;

use super::*;
use crate::conformance::Proxy;
use crate::registration::{Registration, RegistrationHandle};

/// A store whose connections go through `proxy`.
fn behind(proxy: &Proxy, server: &EtcdServer, request_timeout_ms: u64) -> EtcdStore {
    let options = server.options("/hawser/v1");
    EtcdStore::new(&EtcdOptions { endpoints: vec![proxy.endpoint()], request_timeout_ms, ..options }).unwrap()
}

#[tokio::test]
async fn a_watch_that_was_cut_goes_on_where_it_was() {
    let server = etcd!();
    let (proxy, direct) = (Proxy::start(server.addr()).await, store(&server));
    let (lease, _) = registered(&direct, "g", LONG).await;
    let mut watch = behind(&proxy, &server, 5_000).watch().await.unwrap();
    let mut mirror = Mirror::default();
    for round in 0..3 {
        let sessions: Vec<_> = (0..50).map(|i| key("t", &format!("s-{round}-{i}"))).collect();
        direct.claim(lease, &group("g"), sessions.clone()).await.unwrap();
        direct.release(lease, sessions[..10].to_vec()).await.unwrap();
        mirror.until(&mut watch, |mirror| mirror.claims.len() == 40 * (round + 1)).await;
        // Cut, and changed meanwhile: what was missed comes one by one and not as a snapshot.
        proxy.cut();
        direct.release(lease, sessions[10..11].to_vec()).await.unwrap();
        direct.claim(lease, &group("g"), sessions[..1].to_vec()).await.unwrap();
        proxy.mend();
    }
    let last = Capacity { slots_free: 1, ..Capacity::default() };
    direct.publish(lease, &group("g"), last, false).await.unwrap();
    mirror.until(&mut watch, |m| m.groups.get(&group("g")).is_some_and(|g| g.capacity == last)).await;
    assert_same(&mirror, &listed(&direct).await);
    assert_eq!(mirror.snapshots, 1);
    assert!(proxy.opened() >= 4, "the connection was cut thrice");
}

#[tokio::test]
async fn a_watch_that_missed_what_was_compacted_is_told_a_snapshot() {
    let server = etcd!();
    let (proxy, direct) = (Proxy::start(server.addr()).await, store(&server));
    let (lease, _) = registered(&direct, "g", LONG).await;
    let (other, _) = registered(&direct, "gone", LONG).await;
    let sessions: Vec<_> = (0..300).map(|i| key("t", &format!("s{i}"))).collect();
    direct.claim(lease, &group("g"), sessions[..100].to_vec()).await.unwrap();
    direct.claim(other, &group("gone"), sessions[100..200].to_vec()).await.unwrap();
    let mut watch = behind(&proxy, &server, 5_000).watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 200).await;

    proxy.cut();
    direct.release(lease, sessions[..50].to_vec()).await.unwrap();
    direct.revoke(other).await.unwrap();
    direct.claim(lease, &group("g"), sessions[150..].to_vec()).await.unwrap();
    let now = listed(&direct).await;
    let revision = i64::try_from(now.revision).unwrap();
    raw(&server).await.compact(revision, None).await.unwrap();
    proxy.mend();

    mirror.until(&mut watch, |mirror| mirror.snapshots == 2).await;
    assert_same(&mirror, &now);
    // And it is followed from there.
    direct.release(lease, sessions[150..].to_vec()).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 50).await;
    assert_eq!(mirror.snapshots, 2);
}

#[tokio::test]
async fn a_silent_watch_is_noticed_and_a_silent_connection_left() {
    let server = etcd!();
    let (proxy, direct) = (Proxy::start(server.addr()).await, store(&server));
    let (lease, _) = registered(&direct, "g", LONG).await;
    let quick = behind(&proxy, &server, 400);
    let mut watch = quick.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 1).await;
    direct.claim(lease, &group("g"), vec![key("t", "before")]).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
    // The connection is there and carries nothing: only a question that has no answer can tell.
    proxy.swallow_open();
    direct.claim(lease, &group("g"), vec![key("t", "after")]).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 2).await;
    assert_eq!(mirror.snapshots, 1, "nothing was missed, so nothing is listed");

    // A call is given up once, and the next one does not trust the connection.
    let opened = proxy.opened();
    proxy.swallow_open();
    let silent = quick.renew(lease).await;
    assert!(matches!(silent, Err(StoreError::Unreachable { .. })), "{silent:?}");
    assert_eq!(quick.renew(lease).await, Ok(LONG));
    assert!(proxy.opened() > opened);
}

#[tokio::test]
async fn a_quiet_watch_is_no_broken_one() {
    let server = etcd!();
    let (direct, options) = (store(&server), server.options("/hawser/v1"));
    let (lease, _) = registered(&direct, "g", LONG).await;
    let quick = EtcdStore::new(&EtcdOptions { request_timeout_ms: 300, ..options }).unwrap();
    let mut watch = quick.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 1).await;
    // Without signs of life in between, this would be more breaks in a row than a watch outlives.
    let quiet = tokio::time::timeout(Duration::from_secs(7), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    direct.claim(lease, &group("g"), vec![key("t", "s")]).await.unwrap();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
    assert_eq!(mirror.snapshots, 1);
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_unreachable_soon_and_is_found_once_it_is() {
    let mut server = etcd!();
    let store = store(&server);
    server.kill();
    let clock = Clock::system();
    let start = clock.now();
    let refused = store.grant(LONG).await;
    assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
    assert!(matches!(store.watch().await.err(), Some(StoreError::Unreachable { .. })));
    println!("two refusals took {:?}", clock.now().since(start));
    server.restart().await;
    assert!(store.grant(LONG).await.is_ok());
}

#[tokio::test]
async fn a_restart_on_the_same_data_loses_no_claim_and_no_change() {
    let mut server = etcd!();
    let store = store(&server);
    let (a, first) = registered(&store, "a", LONG).await;
    let (b, _) = registered(&store, "b", LONG).await;
    let sessions: Vec<_> = (0..250).map(|i| key("t", &format!("s{i}"))).collect();
    store.claim(a, &group("a"), sessions[..150].to_vec()).await.unwrap();
    let mut watch = store.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 150).await;
    server.restart().await;

    assert_eq!(store.renew(a).await, Ok(LONG));
    let outcomes = store.claim(b, &group("b"), sessions[100..].to_vec()).await.unwrap();
    let owned = ClaimOutcome::Owned(hawser_common::group::Owner { group: group("a"), epoch: first });
    assert_eq!(outcomes[..50], vec![owned; 50]);
    assert_eq!(outcomes[50..], vec![ClaimOutcome::Won; 100]);
    let (_, last) = registered(&store, "c", LONG).await;
    assert!(last > first, "epochs grow over a restart");
    mirror.until(&mut watch, |mirror| mirror.groups.len() == 3 && mirror.claims.len() == 250).await;
    assert_same(&mirror, &listed(&store).await);
    assert_eq!(mirror.snapshots, 1);
}

/// A registration over etcd, and what it needs.
struct Group {
    handle: RegistrationHandle,
    clock: Clock,
    tasks: Tasks,
}

impl Group {
    async fn start(server: &EtcdServer, ttl: Duration) -> Self {
        let (clock, tasks) = (Clock::system(), Tasks::new());
        let store: Arc<dyn Store> = Arc::new(store(server));
        let handle = Registration::start(store, clock.clone(), &tasks, record("g"), ttl).await.unwrap();
        Self { handle, clock, tasks }
    }

    fn valid(&self) -> bool {
        self.handle.valid(self.clock.now())
    }

    /// Waits for a change of the standing after which `done` holds.
    async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let limit = tokio::time::timeout(LONG, async {
            while !done(self) {
                // A standing also ends by time passing, which is no change.
                let left = self.handle.standing().valid_until.since(self.clock.now());
                let wait = left.max(Duration::from_millis(20));
                let _ = tokio::time::timeout(wait, self.handle.changed()).await;
            }
        });
        limit.await.expect("the registration stands as it should within a minute");
    }
}

#[tokio::test]
async fn a_short_pause_of_etcd_costs_nothing() {
    let server = etcd!();
    let mut worker = Group::start(&server, Duration::from_secs(10)).await;
    let epoch = worker.handle.epoch();
    worker.handle.claim(key("t", "s")).await.unwrap();
    server.pause();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    server.resume();
    let valid_until = worker.handle.standing().valid_until;
    worker.until(|worker| worker.handle.standing().valid_until > valid_until).await;
    assert!(worker.valid() && worker.handle.epoch() == epoch, "the lease was kept");
    let listed = listed(&store(&server)).await;
    assert_eq!(listed.claims.len(), 1);
    worker.handle.stop().await;
    assert!(worker.tasks.shutdown(LONG).await);
}

#[tokio::test]
async fn a_long_pause_fences_the_worker_which_registers_again_by_itself() {
    let server = etcd!();
    let observer = store(&server);
    let mut worker = Group::start(&server, Duration::from_secs(3)).await;
    let first = worker.handle.epoch();
    worker.handle.claim(key("t", "s")).await.unwrap();
    let mut watch = observer.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
    server.pause();
    worker.until(|worker| !worker.valid()).await;
    let refused = worker.handle.claim(key("t", "new")).await;
    assert!(refused.is_err(), "a worker without a lease claims nothing");
    // Longer than the lease, so that etcd ends it as soon as it goes on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.resume();
    worker.until(|worker| worker.valid() && worker.handle.epoch() > first).await;
    let epoch = worker.handle.epoch();
    mirror
        .until(&mut watch, |m| {
            m.groups.get(&group("g")).is_some_and(|g| g.epoch == epoch) && m.claims.is_empty()
        })
        .await;
    assert_eq!(worker.handle.claim(key("t", "s")).await, Ok(epoch));
    mirror.until(&mut watch, |mirror| mirror.claims.len() == 1).await;
    worker.handle.stop().await;
    mirror.until(&mut watch, |mirror| mirror.groups.is_empty()).await;
    assert!(worker.tasks.shutdown(LONG).await);
}

#[tokio::test]
async fn a_registration_outlives_a_restart_of_etcd() {
    let mut server = etcd!();
    let mut worker = Group::start(&server, Duration::from_secs(20)).await;
    let epoch = worker.handle.epoch();
    server.restart().await;
    let valid_until = worker.handle.standing().valid_until;
    worker.until(|worker| worker.handle.standing().valid_until > valid_until).await;
    assert_eq!(worker.handle.epoch(), epoch);
    assert_eq!(worker.handle.claim(key("t", "s")).await, Ok(epoch));
    worker.handle.stop().await;
    assert!(worker.tasks.shutdown(LONG).await);
}

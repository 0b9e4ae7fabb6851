//! The store that a router serves, through the client that workers use.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use hawser_common::Coded as _;
use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, ErrorCode, GroupId, SessionKey};
use hawser_placement::conformance::{self, Harness, Mirror, group, key, record};
use hawser_placement::{
    Change, ClaimOutcome, EmbeddedOptions, EmbeddedStore, Event, Lease, LeaseId, Store, StoreError,
    StoreFuture, Update, Watch,
};
use hawser_router::{Router, RouterHandle, RouterOptions};

use crate::cluster::{LONG, options};
use crate::remote_store::RemoteStore;

fn serve(store: &Arc<EmbeddedStore>) -> (RouterHandle, RemoteStore) {
    let served = Some(Arc::clone(store));
    let router = Router::start(&options(), Arc::clone(store) as _, served, Clock::system()).unwrap();
    let remote = RemoteStore::new(&format!("http://{}", router.addr())).unwrap();
    (router, remote)
}

#[tokio::test]
async fn the_store_over_the_wire_passes_the_suite() {
    conformance::run(async || {
        let (clock, hand) = Clock::manual();
        let store =
            Arc::new(EmbeddedStore::new(clock, EmbeddedOptions { max_events: 64, ..Default::default() }));
        let (_router, remote) = serve(&store);
        let advance = move |by| {
            hand.advance(by);
            store.sweep();
            std::future::ready(()).boxed()
        };
        Harness { store: Arc::new(remote), advance: Box::new(advance) }
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_larger_than_a_message_arrives_as_one() {
    let (clock, _hand) = Clock::manual();
    let store = Arc::new(EmbeddedStore::new(clock, EmbeddedOptions::default()));
    let (router, remote) = serve(&store);
    let lease = remote.grant(LONG).await.unwrap().id;
    remote.register(lease, record("g")).await.unwrap();
    for batch in 0..10 {
        let sessions = (0..2000).map(|s| key("t", &format!("s-{batch}-{s}"))).collect();
        remote.claim(lease, &group("g"), sessions).await.unwrap();
    }
    let mut watch = remote.watch().await.unwrap();
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
    assert_eq!((mirror.groups.len(), mirror.claims.len()), (1, 20_000));
    // A watch does not hold the router up when it stops.
    assert!(router.shutdown(LONG).await);
    let ended = tokio::time::timeout(LONG, watch.next()).await.unwrap();
    assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_unreachable() {
    assert_eq!(RemoteStore::new("not a uri").unwrap_err().code(), ErrorCode::Invalid);
    let (clock, _hand) = Clock::manual();
    let (router, remote) = serve(&Arc::new(EmbeddedStore::new(clock, EmbeddedOptions::default())));
    remote.grant(LONG).await.unwrap();
    assert!(router.shutdown(LONG).await);
    assert_eq!(remote.grant(LONG).await.unwrap_err().code(), ErrorCode::Unavailable);
}

/// A store whose watchers are not told that a group went.
#[derive(Debug)]
struct Forgetful(Arc<EmbeddedStore>);

impl Store for Forgetful {
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease> {
        self.0.grant(ttl)
    }
    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration> {
        self.0.renew(lease)
    }
    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()> {
        self.0.revoke(lease)
    }
    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch> {
        self.0.register(lease, group)
    }
    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()> {
        self.0.publish(lease, group, capacity, draining)
    }
    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>> {
        self.0.claim(lease, group, sessions)
    }
    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()> {
        self.0.release(lease, sessions)
    }
    fn watch(&self) -> StoreFuture<'_, Watch> {
        Box::pin(async move {
            let forget = |update: Result<Update, StoreError>| {
                update.map(|mut update| {
                    if let Change::Events(events) = &mut update.change {
                        events.retain(|event| !matches!(event, Event::GroupGone(_)));
                    }
                    update
                })
            };
            Ok(self.0.watch().await?.map(forget).boxed())
        })
    }
}

#[tokio::test]
async fn p11_a_group_whose_end_was_missed_is_gone_with_the_next_list() {
    let (clock, _hand) = Clock::manual();
    let store = Arc::new(EmbeddedStore::new(clock, EmbeddedOptions::default()));
    let forgetful: Arc<dyn Store> = Arc::new(Forgetful(Arc::clone(&store)));
    for (relist_ms, finds_out) in [(0, false), (100, true)] {
        let options = RouterOptions { relist_ms, ..options() };
        let router = Router::start(&options, Arc::clone(&forgetful), None, Clock::system()).unwrap();
        let lease = store.grant(LONG).await.unwrap().id;
        store.register(lease, record("g")).await.unwrap();
        assert!(router.wait_for_groups(1, LONG).await);
        store.revoke(lease).await.unwrap();
        // A second group tells when the router has heard of everything before it.
        let lease = store.grant(LONG).await.unwrap().id;
        store.register(lease, record("h")).await.unwrap();
        let gone = async || {
            router.loads().iter().map(|(group, _)| group.as_str() == "h").collect::<Vec<_>>() == [true]
        };
        if finds_out {
            let wait = async {
                while !gone().await {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "{:?}", router.loads());
        } else {
            assert!(router.wait_for_groups(2, LONG).await, "without a list it is never found out");
        }
        store.revoke(lease).await.unwrap();
        assert!(router.shutdown(LONG).await);
    }
}

//! The store that a router serves, through the client that workers use.

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use hawser_common::Coded as _;
use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_placement::conformance::{self, Harness, Mirror, group, key, record};
use hawser_placement::{EmbeddedOptions, EmbeddedStore, Store};
use hawser_router::{Router, RouterHandle};

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

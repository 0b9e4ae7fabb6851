//! The store in a real etcd: the suite, outages, compaction, foreign data, users and certificates; and the fold alone.

mod folding;
mod outages;
mod secured;
mod sharing;

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt as _;

use super::*;
use crate::conformance::{self, EtcdServer, Harness, Mirror, group, key, record};

/// A time to live that no pause of the tests' machine outlasts by mistake.
const LONG: Duration = Duration::from_secs(60);

/// Starts an etcd, or leaves the test where tests with etcd are to be passed over.
macro_rules! etcd {
    () => {
        match EtcdServer::start(None).await {
            Some(server) => server,
            None => return println!("passed over: HAWSER_SKIP_ETCD is set"),
        }
    };
}
use etcd;

fn store(server: &EtcdServer) -> EtcdStore {
    EtcdStore::new(&server.options("/hawser/v1")).unwrap()
}

/// A client of etcd itself.
async fn raw(server: &EtcdServer) -> etcd_client::Client {
    etcd_client::Client::connect([server.endpoint()], None).await.unwrap()
}

/// A lease with a group under it.
async fn registered(store: &EtcdStore, id: &str, ttl: Duration) -> (LeaseId, Epoch) {
    let lease = store.grant(ttl).await.unwrap().id;
    (lease, store.register(lease, record(id)).await.unwrap())
}

/// What a watcher that begins now is told first.
async fn listed(store: &EtcdStore) -> Mirror {
    let (mut mirror, mut watch) = (Mirror::default(), store.watch().await.unwrap());
    mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
    mirror
}

/// The same, but for the revision, which other keys move as well, and for how it came to be known.
#[track_caller]
fn assert_same(a: &Mirror, b: &Mirror) {
    assert_eq!((&a.groups, &a.claims), (&b.groups, &b.claims));
}

#[tokio::test]
async fn the_store_in_etcd_passes_the_suite() {
    let server = etcd!();
    let next = AtomicU32::new(0);
    conformance::run(async || {
        // A prefix of its own is a store of its own.
        let prefix = format!("/hawser/case-{}", next.fetch_add(1, Ordering::SeqCst));
        let store = EtcdStore::new(&server.options(&prefix)).unwrap();
        // etcd's leases end in real time and no clock of ours can make them.
        let advance = |by| tokio::time::sleep(by).boxed();
        Harness { store: Arc::new(store), advance: Box::new(advance) }
    })
    .await;
}

//! The fake against the suite that the embedded store and a real etcd pass, and beside a real etcd where the suite does
//! not look.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, PutOptions, Txn, TxnOp, WatchOptions};
use futures_util::FutureExt as _;
use hawser_common::clock::{Clock, ManualClock};
use hawser_placement::conformance::{self, EtcdServer, Harness};
use hawser_placement::{EtcdOptions, EtcdStore};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use hawser_common::tasks::Tasks;
use hawser_testkit::FakeEtcd;

/// A fake on a free port of loopback, and the hand that moves its clock.
async fn served() -> (FakeEtcd, ManualClock, String) {
    let (clock, hand) = Clock::manual();
    let etcd = FakeEtcd::new(move || clock.now());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = etcd.clone();
    Tasks::new().spawn(async move { serving.serve(TcpListenerStream::new(listener)).await });
    (etcd, hand, endpoint)
}

#[tokio::test]
async fn the_fake_passes_the_suite() {
    conformance::run(async || {
        let (etcd, hand, endpoint) = served().await;
        let options = EtcdOptions { endpoints: vec![endpoint], ..EtcdOptions::default() };
        let store = EtcdStore::new(&options).unwrap();
        let advance = move |by| {
            hand.advance(by);
            etcd.sweep();
            std::future::ready(()).boxed()
        };
        Harness { store: Arc::new(store), advance: Box::new(advance) }
    })
    .await;
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> (i32, String) {
    match answer {
        Err(Error::GRpcStatus(status)) => (status.code() as i32, status.message().to_owned()),
        other => (-1, format!("{other:?}")),
    }
}

/// What a client sees of an etcd, as text: what is asked is the same for both.
async fn behaviour(endpoint: &str) -> Vec<String> {
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let mut seen = Vec::new();
    let base = client.get("none", None).await.unwrap().header().unwrap().revision();
    let since = |revision: i64| revision - base;
    // Compaction: reads and watches before it, at it and after it.
    for value in ["1", "2", "3"] {
        client.put("k", value, None).await.unwrap();
    }
    client.compact(base + 2, None).await.unwrap();
    seen.push(format!("{:?}", refused(client.compact(base + 2, None).await)));
    seen.push(format!("{:?}", refused(client.compact(base + 99, None).await)));
    for at in 1..=3 {
        let read = client.get("k", Some(GetOptions::new().with_revision(base + at))).await;
        seen.push(match read {
            Ok(read) => format!("{:?} at {}", read.kvs()[0].value_str(), since(read.kvs()[0].mod_revision())),
            Err(error) => format!("{:?}", refused::<()>(Err(error))),
        });
        let options = WatchOptions::new().with_start_revision(base + at);
        let mut watch = client.watch("k", Some(options)).await.unwrap();
        for _ in 0..2 {
            let message = watch.message().await.unwrap().unwrap();
            let events: Vec<_> =
                message.events().iter().map(|event| since(event.kv().unwrap().mod_revision())).collect();
            let (left, reason) = (message.compact_revision(), message.cancel_reason().to_owned());
            let left = if left == 0 { 0 } else { since(left) };
            seen.push(format!("{} {} {left} {reason:?} {events:?}", message.created(), message.canceled()));
        }
    }
    seen.push(format!(
        "{:?}",
        refused(client.get("k", Some(GetOptions::new().with_revision(base + 99))).await)
    ));
    // Signs of life.
    let mut watch = client.watch("quiet", None).await.unwrap();
    assert!(watch.message().await.unwrap().unwrap().created());
    watch.request_progress().await.unwrap();
    let sign = watch.message().await.unwrap().unwrap();
    seen.push(format!(
        "{} {} {}",
        sign.watch_id(),
        sign.events().len(),
        since(sign.header().unwrap().revision())
    ));
    // Leases.
    let short = client.lease_grant(1, None).await.unwrap();
    seen.push(format!("{}", short.ttl()));
    let options = || Some(PutOptions::new().with_lease(short.id()));
    client.put("leased/a", "", options()).await.unwrap();
    client.put("leased/b", "", options()).await.unwrap();
    client.lease_revoke(short.id()).await.unwrap();
    let gone = client.get("leased/", Some(GetOptions::new().with_prefix())).await.unwrap();
    seen.push(format!("{} {}", gone.count(), since(gone.header().unwrap().revision())));
    seen.push(format!("{:?}", refused(client.lease_revoke(short.id()).await)));
    seen.push(format!("{:?}", refused(client.put("k", "", options()).await)));
    seen.push(format!("{}", client.lease_time_to_live(short.id(), None).await.unwrap().ttl()));
    seen.push(format!(
        "{:?}",
        client.lease_keep_alive(short.id()).await.err().map(|error| error.to_string())
    ));
    // Transactions: one revision for all that is inside, conditions over the state before, refusals.
    let inner = |key: &str| {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        TxnOp::txn(
            Txn::new().when([absent]).and_then([TxnOp::put(key, "v", None)]).or_else([TxnOp::get(key, None)]),
        )
    };
    let done = client.txn(Txn::new().and_then([inner("x"), inner("k"), inner("y")])).await.unwrap();
    seen.push(format!("{} {}", done.succeeded(), since(done.header().unwrap().revision())));
    let twice = Txn::new().and_then([TxnOp::put("x", "", None), inner("x")]);
    seen.push(format!("{:?}", refused(client.txn(twice).await)));
    let many = Txn::new().and_then((0..129).map(|i| TxnOp::get(i.to_string(), None)).collect::<Vec<_>>());
    seen.push(format!("{:?}", refused(client.txn(many).await)));
    let unleased = Txn::new().and_then([TxnOp::put("z", "", options()), TxnOp::put("w", "", None)]);
    seen.push(format!("{:?}", refused(client.txn(unleased).await)));
    seen.push(format!("{}", client.get("w", None).await.unwrap().count()));
    seen
}

#[tokio::test]
async fn the_fake_and_a_real_etcd_are_told_apart_by_nothing_that_the_store_uses() {
    let Some(real) = EtcdServer::start(None).await else {
        return println!("passed over: HAWSER_SKIP_ETCD is set");
    };
    let (_fake, _hand, endpoint) = served().await;
    let (fake, real) = (behaviour(&endpoint).await, behaviour(&real.endpoint()).await);
    assert_eq!(fake, real);
}

#[tokio::test]
async fn a_lease_ends_by_its_clock_and_a_paused_etcd_ends_none() {
    let (etcd, hand, endpoint) = served().await;
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let lease = client.lease_grant(5, None).await.unwrap().id();
    client.put("k", "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    etcd.pause(true);
    hand.advance(Duration::from_secs(6));
    assert_eq!(client.get("k", None).await.unwrap().count(), 1);
    etcd.pause(false);
    assert_eq!(client.get("k", None).await.unwrap().count(), 0);
    let written: Vec<_> = etcd.trail().into_iter().map(|write| (write.key, write.value.is_some())).collect();
    assert_eq!(written, vec![("k".to_owned(), true), ("k".to_owned(), false)]);
}

#[tokio::test]
async fn a_restart_gives_leases_their_time_again_and_a_loss_forgets_everything() {
    let (etcd, hand, endpoint) = served().await;
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let lease = client.lease_grant(5, None).await.unwrap().id();
    client.put("k", "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    hand.advance(Duration::from_secs(4));
    etcd.restarted();
    hand.advance(Duration::from_secs(4));
    assert_eq!(client.get("k", None).await.unwrap().count(), 1);
    etcd.lost();
    assert_eq!(etcd.revision(), 1);
    assert_eq!(client.get("k", None).await.unwrap().count(), 0);
    assert_ne!(
        client.lease_grant(5, None).await.unwrap().id(),
        lease,
        "numbers of leases are never used again"
    );
    assert_eq!(etcd.trail().len(), 1, "what was written before is still on the trail");
}

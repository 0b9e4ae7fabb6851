//! New claims per second through one real etcd, which this starts itself: in batches, as the store makes them, beside
//! one plain transaction per claim. The sides take turns within one run. Then the size of a full cluster.
//!
//! `cargo bench -p hawser-placement --features conformance --bench claims`; `-- --quick` for a tenth of it.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hawser_common::clock::Clock;
use hawser_common::{Epoch, SessionKey};
use hawser_placement::conformance::{EtcdServer, Mirror, group, key, record};
use hawser_placement::{EtcdStore, LeaseId, MAX_BATCH, Store as _};

const PREFIX: &str = "/hawser/v1";
const TTL: Duration = Duration::from_secs(600);

/// What a side does with the sessions of one turn.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// The store: a hundred claims to a transaction, four transactions on their way.
    Batched,
    /// One plain transaction per claim, this many on their way.
    Plain(usize),
}

struct Bench {
    store: EtcdStore,
    client: Client,
    lease: LeaseId,
    epoch: Epoch,
    clock: Clock,
}

impl Bench {
    /// Claims `sessions` and gives the claims per second.
    async fn turn(&self, side: Side, sessions: Vec<SessionKey>) -> f64 {
        let count = sessions.len();
        let start = self.clock.now();
        match side {
            Side::Batched => {
                for batch in sessions.chunks(MAX_BATCH) {
                    let claimed = self.store.claim(self.lease, &group("g"), batch.to_vec()).await;
                    claimed.expect("the claims are answered");
                }
            }
            Side::Plain(in_flight) => {
                let claims = stream::iter(sessions).map(|session| self.plain(session));
                let claimed: Result<Vec<()>, _> = claims.buffer_unordered(in_flight).try_collect().await;
                claimed.expect("the claims are answered");
            }
        }
        let count = u32::try_from(count).map_or(f64::INFINITY, f64::from);
        count / self.clock.now().since(start).as_secs_f64()
    }

    /// The same condition, value and lease as the store's, for one session.
    async fn plain(&self, session: SessionKey) -> Result<(), etcd_client::Error> {
        let lease = i64::try_from(self.lease.0).expect("etcd's leases are positive");
        let epoch = i64::try_from(self.epoch.0).expect("epochs are revisions");
        let registration = format!("{PREFIX}/groups/g");
        let claimed = format!("{PREFIX}/sessions/{}/{}", session.tenant, session.session);
        let txn = Txn::new()
            .when([
                Compare::create_revision(claimed.clone(), CompareOp::Equal, 0),
                Compare::create_revision(registration.clone(), CompareOp::Equal, epoch),
                Compare::lease(registration, CompareOp::Equal, lease),
            ])
            .and_then([TxnOp::put(
                claimed.clone(),
                format!(r#"{{"v":1,"group":"g","epoch":{epoch}}}"#),
                Some(PutOptions::new().with_lease(lease)),
            )])
            .or_else([TxnOp::get(claimed, None)]);
        let answer = self.client.kv_client().txn(txn).await?;
        assert!(answer.succeeded(), "the session is new");
        Ok(())
    }

    async fn rates(&self, rounds: usize, count: usize) {
        let sides = [Side::Batched, Side::Plain(1), Side::Plain(64), Side::Plain(512)];
        let mut rates = vec![Vec::new(); sides.len()];
        for round in 0..rounds {
            for (n, side) in sides.into_iter().enumerate() {
                // One at a time is so much slower that a tenth tells as much.
                let count = if matches!(side, Side::Plain(1)) { count / 10 } else { count };
                let sessions = (0..count).map(|i| key("bench", &format!("session-{round}-{n}-{i}")));
                rates[n].push(self.turn(side, sessions.collect()).await);
            }
        }
        println!("\nnew claims per second, {rounds} turns of {count} each: median (least to most)");
        for (side, mut rates) in sides.into_iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            let name = match side {
                Side::Batched => "batched, 100 to a transaction, 4 on their way".to_owned(),
                Side::Plain(in_flight) => format!("plain, {in_flight} on their way"),
            };
            let (least, median, most) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
            println!("  {name:46} {median:8.0}  ({least:.0} to {most:.0})");
        }
    }

    /// How long one batch takes from end to end, by size.
    async fn latencies(&self, rounds: usize) {
        println!("\ntime of one call, median of {rounds} (least to most)");
        for size in [1, 10, 100] {
            let mut times = Vec::new();
            for round in 0..rounds {
                let sessions = (0..size).map(|i| key("latency", &format!("s-{size}-{round}-{i}"))).collect();
                let start = self.clock.now();
                self.store.claim(self.lease, &group("g"), sessions).await.expect("answered");
                times.push(self.clock.now().since(start));
            }
            times.sort();
            println!(
                "  {size:3} claims  {:?}  ({:?} to {:?})",
                times[times.len() / 2],
                times[0],
                times[rounds - 1]
            );
        }
    }
}

/// A cluster of `groups` with 100 sessions each: what it takes to fill, to list and to hold.
async fn full(server: &EtcdServer, clock: &Clock, groups: usize) {
    let store = EtcdStore::new(&server.options("/full/v1")).expect("the options are right");
    let mut client = Client::connect([server.endpoint()], None).await.expect("etcd is there");
    let size = |status: &etcd_client::StatusResponse| status.db_size() / 1024;
    let before = size(&client.status().await.expect("etcd answers"));
    let start = clock.now();
    let fill = |g: usize| {
        let store = &store;
        async move {
            let id = format!("group-{g:04}");
            let lease = store.grant(TTL).await?.id;
            store.register(lease, record(&id)).await?;
            let sessions = (0..100).map(|s| key("default", &format!("session-{g:04}-{s:06}"))).collect();
            store.claim(lease, &group(&id), sessions).await?;
            Ok::<_, hawser_placement::StoreError>(lease)
        }
    };
    let leases: Vec<LeaseId> =
        stream::iter(0..groups).map(fill).buffered(64).try_collect().await.expect("filled");
    let filled = clock.now();
    let after = size(&client.status().await.expect("etcd answers"));
    let mut watch = store.watch().await.expect("listed");
    let mut mirror = Mirror::default();
    mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
    let listed = clock.now();
    store.revoke(leases[0]).await.expect("revoked");
    mirror.until(&mut watch, |mirror| mirror.groups.len() == groups - 1).await;
    let told = clock.now();
    println!(
        "\n{groups} groups with 100 sessions each: filled in {:?} (64 groups at once); {} KiB more in etcd; \
         listed in {:?}; one group's end told in {:?}",
        filled.since(start),
        after - before,
        listed.since(filled),
        told.since(listed)
    );
}

#[tokio::main]
async fn main() {
    let Some(server) = EtcdServer::start(None).await else { return println!("passed over") };
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, count, groups) = if quick { (3, 2_000, 100) } else { (7, 10_000, 1_000) };
    let store = EtcdStore::new(&server.options(PREFIX)).expect("the options are right");
    let lease = store.grant(TTL).await.expect("a lease").id;
    let epoch = store.register(lease, record("g")).await.expect("registered");
    let client = Client::connect([server.endpoint()], None).await.expect("etcd is there");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    println!("one etcd on this machine ({cores} cores), its data in {}", std::env::temp_dir().display());
    let bench = Bench { store, client, lease, epoch, clock: Clock::system() };
    bench.latencies(rounds * 10).await;
    bench.rates(rounds, count).await;
    full(&server, &bench.clock, groups).await;
}

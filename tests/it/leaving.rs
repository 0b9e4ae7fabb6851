//! Groups and routers that leave while turns run, and a router that remembers many sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use hawser_client::{Client, Frame, Retry};
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_placement::{EmbeddedStore, Store};
use hawser_proto::v1;
use hawser_proto::v1::store_client::StoreClient;
use hawser_router::{Router, RouterHandle, RouterOptions};

use crate::cluster::{Cluster, LIMIT, eventually, run, token_request, words};
use crate::fake_worker::{FakeWorker, Script};
use crate::process::Server;

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_group_that_is_told_to_go_finishes_fifty_turns_and_new_ones_go_elsewhere() {
    let mut cluster = Cluster::start(2, |options| options.threads = 1).await;
    // As many run at the other group.
    let (mut streams, mut leaving_ones) = (Vec::new(), 0);
    for n in 0..100 {
        let request = token_request(&format!("s{n}"), &words(n, 20), 12);
        let mut frames = cluster.client.generate(request, Some(LIMIT)).await.unwrap();
        match frames.next().await.unwrap() {
            Some(Frame::Placed(placed)) => leaving_ones += usize::from(placed.group == "g0"),
            other => panic!("{other:?}"),
        }
        streams.push(frames);
    }
    assert!((30..=70).contains(&leaving_ones), "groups share sessions: {leaving_ones}");
    let index = cluster.workers.iter().position(|worker| worker.group().as_str() == "g0").unwrap();
    let worker = cluster.workers.remove(index);
    let grace = Duration::from_secs(60);
    let leaving = Tasks::new().spawn(async move { worker.shutdown(grace).await });
    let finished = join_all(streams.into_iter().map(|mut frames| async move {
        let mut tokens = 0;
        while let Some(frame) = frames.next().await.unwrap() {
            if let Frame::Chunk(chunk) = frame {
                tokens += chunk.token_ids.len();
            }
        }
        tokens
    }));
    let new =
        join_all((0..10).map(|n| {
            let client = cluster.client.clone();
            async move {
                run(&client, token_request(&format!("new{n}"), &words(500 + n, 20), 4)).await.unwrap().group
            }
        }));
    let (finished, new) = tokio::join!(finished, new);
    assert!(finished.iter().all(|tokens| *tokens == 12), "{finished:?}");
    assert!(new.iter().all(|group| group == "g1"), "{new:?}");
    assert!(leaving.await.unwrap(), "it went before the time was over, and cut nothing off");
    cluster.wait_for_groups(1).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_drains_still_lists_the_session_whose_turn_runs() {
    let mut cluster = Cluster::start(1, |options| options.threads = 1).await;
    let request = token_request("lasting", &words(1, 20), 300);
    let mut frames = cluster.client.generate(request, Some(LIMIT)).await.unwrap();
    assert!(matches!(frames.next().await.unwrap(), Some(Frame::Placed(_))));
    let worker = cluster.workers.remove(0);
    let leaving = Tasks::new().spawn(async move { worker.shutdown(LIMIT).await });
    eventually("the group drains", async || {
        let groups = cluster.client.list_groups().await.unwrap();
        groups.iter().all(|group| group.draining)
    })
    .await;
    let listed = cluster.client.list_sessions(0).await.unwrap();
    assert_eq!(listed.silent, []);
    let [session] = &listed.sessions[..] else { panic!("{listed:?}") };
    assert!(session.id == "lasting" && session.busy, "{session:?}");
    drop(frames);
    assert!(leaving.await.unwrap());
    cluster.stop().await;
}

fn router(listen: std::net::SocketAddr, store: &Arc<EmbeddedStore>) -> RouterHandle {
    let options = RouterOptions { listen, ..RouterOptions::default() };
    Router::start(&options, Arc::clone(store) as Arc<dyn Store>, None, Clock::system()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_three_routers_restart_one_after_the_other_under_two_hundred_streams() {
    let tasks = Tasks::new();
    let store = EmbeddedStore::start(Clock::system(), &tasks, Default::default());
    let mut workers = Vec::new();
    for n in 0..4 {
        let worker = FakeWorker::start(&format!("g{n}"), "m", Arc::clone(&store) as _, &tasks).await;
        worker.script(Script { chunks: 6, pace: Duration::from_millis(20), ..Script::default() });
        workers.push(worker);
    }
    let mut routers: Vec<_> = (0..3).map(|_| router(([127, 0, 0, 1], 0).into(), &store)).collect();
    for router in &routers {
        assert!(router.wait_for_groups(4, LIMIT).await);
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for router in &routers {
        clients.push(Client::connect(&format!("http://{}", router.addr())).await.unwrap());
    }
    let sessions: Vec<_> = (0..200)
        .map(|n| {
            let (client, done) = (clients[n % 3].clone(), Arc::clone(&done));
            tasks.spawn(async move {
                let patient = Retry { attempts: 40, ..Retry::default() };
                let mut session = client.session().retry(patient).start();
                let (mut groups, mut turns) = (Vec::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    let turn =
                        session.say("go on").await.unwrap_or_else(|error| panic!("turn {turns}: {error}"));
                    let outcome =
                        turn.outcome().await.unwrap_or_else(|error| panic!("turn {turns}: {error}"));
                    assert_eq!(outcome.text, "t0 t1 t2 t3 t4 t5 ");
                    groups.push(outcome.placed.group);
                    turns += 1;
                }
                groups.dedup();
                (groups, turns)
            })
        })
        .collect();
    for index in 0..3 {
        eventually("streams run", async || routers[index].in_flight() > 20).await;
        let leaving = routers.remove(index);
        let addr = leaving.addr();
        assert!(leaving.shutdown(LIMIT).await, "every stream ended by itself");
        routers.insert(index, router(addr, &store));
        eventually("its clients are back", async || routers[index].in_flight() > 20).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut turns = 0;
    for session in sessions {
        let (groups, count) = session.await.unwrap();
        assert_eq!(groups.len(), 1, "the session moved: {groups:?}");
        turns += count;
    }
    println!("{turns} turns over three restarts");
    for router in routers {
        assert_eq!(router.in_flight(), 0);
        assert!(router.loads().iter().all(|(_, load)| *load == 0));
        assert!(router.shutdown(LIMIT).await);
    }
}

/// Resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p21_a_hundred_thousand_sessions_of_a_thousand_groups_take_little_of_a_router() {
    const GROUPS: usize = 1_000;
    const SESSIONS: usize = 100_000;
    let (router, uri) = Server::router(&[]).await;
    let before = resident_kib(router.pid());
    let mut store = StoreClient::connect(uri.clone()).await.unwrap();
    for group in 0..GROUPS {
        let lease =
            store.grant_lease(v1::GrantLeaseRequest { ttl_ms: 600_000 }).await.unwrap().into_inner().lease;
        let id = format!("group-{group}");
        let record = v1::Group {
            id: id.clone(),
            model: "m".to_owned(),
            address: format!("http://127.0.0.1:{}", 10_000 + group),
            tp: 1,
            ..Default::default()
        };
        let registration = v1::RegisterGroupRequest { lease, group: Some(record) };
        store.register_group(registration).await.unwrap();
        let sessions = (0..SESSIONS / GROUPS).map(|n| v1::SessionKey {
            tenant: "default".to_owned(),
            session: format!("s-{:032x}", (group * SESSIONS + n) as u128 * 0x9E37_79B9_7F4A_7C15),
        });
        let claims = v1::ClaimSessionsRequest { lease, group: id, sessions: sessions.collect() };
        store.claim_sessions(claims).await.unwrap();
    }
    let client = Client::connect(&uri).await.unwrap();
    eventually("the router knows the groups", async || {
        client.list_groups().await.is_ok_and(|groups| groups.len() == GROUPS)
    })
    .await;
    let after = resident_kib(router.pid());
    let each = (after.saturating_sub(before) << 10) / SESSIONS as u64;
    println!(
        "{before} KiB before, {after} KiB after: {each} bytes a session, the store's own memory included"
    );
    assert!(after < 512 << 10, "{after} KiB");
    drop((client, store));
    router.stop().await;
}

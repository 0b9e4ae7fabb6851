//! Clusters over a real etcd: several routers, and what happens while etcd is away or out of a worker's reach.
//!
//! Pauses are short and leases with them: what decides is whether a pause is shorter or longer than the lease.

use std::time::Duration;

use hawser_client::{Client, Frame};
use hawser_common::clock::{Clock, Tick};
use hawser_common::{Coded, ErrorCode};
use hawser_placement::conformance::{EtcdServer, Proxy};

use crate::cluster::{LIMIT, eventually, run, token_request, words};
use crate::process::{Server, connect};

/// A router over the etcd at `endpoint`, and a client of it.
async fn router(endpoint: &str) -> (Server, Client) {
    let (router, uri) = Server::router(&["--etcd", endpoint]).await;
    (router, connect(&uri).await)
}

async fn worker(endpoint: &str, group: &str, ttl_ms: u64) -> (Server, String) {
    let ttl = format!("worker.lease_ttl_ms={ttl_ms}");
    Server::member(["--etcd", endpoint], group, &["--set", &ttl]).await
}

async fn knows(client: &Client, count: usize) {
    let known = async || client.list_groups().await.is_ok_and(|groups| groups.len() == count);
    eventually("the router knows the groups", known).await;
}

/// The epoch of a group as the router sees it.
async fn epoch(client: &Client, group: &str) -> u64 {
    let groups = client.list_groups().await.unwrap();
    groups.into_iter().find(|known| known.id == group).unwrap().epoch
}

/// One turn of a session, and its group with the tokens that were reused.
async fn turn(client: &Client, session: &str, len: usize) -> (String, u32) {
    let answer = run(client, token_request(session, &words(700, len), 3)).await.unwrap();
    (answer.group.clone(), answer.usage().reused_tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_routers_agree_on_every_owner_and_outlive_each_other() {
    let Some(etcd) = EtcdServer::start(None).await else { return };
    let endpoint = etcd.endpoint();
    let (mut first, mut second) = (router(&endpoint).await, router(&endpoint).await);
    let mut workers = Vec::new();
    for group in ["a", "b"] {
        workers.push(worker(&endpoint, group, 10_000).await.0);
    }
    for (_, client) in [&first, &second] {
        knows(client, 2).await;
    }
    let mut owners = Vec::new();
    for index in 0..16 {
        let name = format!("s{index}");
        // Both routers are asked for a session that neither has seen.
        let asked = [&first.1, &second.1].map(|client| Box::pin(turn(client, &name, 40)));
        let [one, other] = futures_util::future::join_all(asked).await.try_into().unwrap();
        assert_eq!(one.0, other.0, "{name} has one owner");
        owners.push((name, one.0));
    }
    assert!(["a", "b"].iter().all(|group| owners.iter().any(|(_, owner)| owner == group)), "{owners:?}");
    for (dead, name) in [(&mut first, "first"), (&mut second, "second")] {
        let (fresh, client) = router(&endpoint).await;
        let old = std::mem::replace(dead, (fresh, client));
        old.0.kill().await;
        knows(&dead.1, 2).await;
        for (session, owner) in &owners {
            let (group, reused) = turn(&dead.1, session, 60).await;
            assert_eq!(&group, owner, "{session} after the {name} router died");
            assert!(reused >= 39, "{session}: {reused} tokens were reused");
        }
    }
    for worker in workers {
        worker.stop().await;
    }
    for (router, client) in [first, second] {
        drop(client);
        router.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_while_etcd_is_paused_known_sessions_go_on_and_new_ones_wait() {
    let Some(etcd) = EtcdServer::start(None).await else { return };
    let (router, client) = router(&etcd.endpoint()).await;
    let (worker, _) = worker(&etcd.endpoint(), "a", 20_000).await;
    knows(&client, 1).await;
    turn(&client, "known", 40).await;
    let before = epoch(&client, "a").await;
    let clock = Clock::system();
    etcd.pause();
    let until = clock.now().after(Duration::from_secs(4));
    let mut turns = 0;
    while clock.now() < until {
        assert!(turn(&client, "known", 40 + turns).await.1 > 0);
        turns += 1;
    }
    let refused =
        client.generate(token_request("new", &words(701, 20), 3), Some(Duration::from_secs(2))).await;
    let error = match refused {
        Err(error) => error,
        Ok(mut frames) => frames.next().await.expect_err("no token leaves before its session is claimed"),
    };
    assert!(matches!(error.code(), ErrorCode::Unavailable | ErrorCode::Deadline), "{error}");
    etcd.resume();
    eventually("new sessions are taken again", async || {
        run(&client, token_request("newer", &words(701, 20), 3)).await.is_ok()
    })
    .await;
    assert_eq!(epoch(&client, "a").await, before, "the lease was never lost");
    assert!(turns > 1 && turn(&client, "known", 200).await.1 > 0);
    drop(client);
    worker.stop().await;
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_pause_beyond_the_lease_ends_in_a_new_epoch_and_nothing_is_restarted() {
    Box::pin(pause_beyond_the_lease(3_000, Duration::from_secs(6))).await;
}

/// The same with the default lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes more than a minute"]
async fn p8_a_pause_of_a_minute() {
    Box::pin(pause_beyond_the_lease(10_000, Duration::from_secs(60))).await;
}

async fn pause_beyond_the_lease(ttl_ms: u64, pause: Duration) {
    let Some(etcd) = EtcdServer::start(None).await else { return };
    let (router, client) = router(&etcd.endpoint()).await;
    let (worker, _) = worker(&etcd.endpoint(), "a", ttl_ms).await;
    knows(&client, 1).await;
    turn(&client, "known", 40).await;
    let before = epoch(&client, "a").await;
    let clock = Clock::system();
    etcd.pause();
    let paused = clock.now();
    // Served for as long as the lease is known to be valid, and refused, not hung, from then on.
    let refused_after = loop {
        let request = token_request("known", &words(700, 60), 3);
        match client.generate(request, Some(Duration::from_millis(500))).await {
            Ok(mut frames) => while !matches!(frames.next().await, Ok(Some(Frame::Finished(_))) | Err(_)) {},
            Err(error) => {
                assert!(matches!(error.code(), ErrorCode::Unavailable | ErrorCode::Deadline), "{error}");
                break clock.now().since(paused);
            }
        }
    };
    // It was renewed a third of its time ago at most.
    assert!(refused_after > Duration::from_millis(ttl_ms / 2), "refused after {refused_after:?} already");
    assert!(refused_after < Duration::from_millis(ttl_ms + 1_500), "fenced after {refused_after:?}");
    tokio::time::sleep(pause.saturating_sub(clock.now().since(paused))).await;
    etcd.resume();
    let resumed = clock.now();
    eventually("the known session is served again", async || {
        run(&client, token_request("known", &words(700, 80), 3)).await.is_ok()
    })
    .await;
    let recovery = clock.now().since(resumed);
    assert!(recovery < Duration::from_secs(5), "recovered after {recovery:?}");
    assert!(epoch(&client, "a").await >= before);
    drop(client);
    worker.stop().await;
    router.stop().await;
}

/// Reads a stream until it fails, and says when that was and how many tokens came.
async fn until_error(
    client: Client,
    session: &'static str,
    clock: Clock,
    started: tokio::sync::oneshot::Sender<()>,
) -> (Tick, usize, ErrorCode) {
    let request = token_request(session, &words(702, 40), 3_000);
    // It would go on at the other group.
    let request = hawser_client::wire::GenerateRequest { no_continuation: true, ..request };
    let mut frames = client.generate(request, Some(LIMIT)).await.unwrap();
    let (mut tokens, mut started) = (0, Some(started));
    loop {
        match frames.next().await {
            Ok(Some(Frame::Chunk(chunk))) => {
                tokens += chunk.token_ids.len();
                if tokens >= 5
                    && let Some(started) = started.take()
                {
                    started.send(()).unwrap();
                }
            }
            Ok(Some(Frame::Placed(_))) => {}
            Ok(end) => panic!("a turn of a group without a lease ended well: {end:?}"),
            Err(error) => return (clock.now(), tokens, error.code()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_a_worker_cut_from_etcd_fences_itself_before_another_one_serves_its_session() {
    const TTL: u64 = 3_000;
    let Some(etcd) = EtcdServer::start(None).await else { return };
    let proxy = Proxy::start(etcd.addr()).await;
    let (router, client) = router(&etcd.endpoint()).await;
    let (cut_off, uri) = worker(&proxy.endpoint(), "a", TTL).await;
    knows(&client, 1).await;
    let clock = Clock::system();
    let (started, running) = tokio::sync::oneshot::channel();
    let reading = Box::pin(until_error(client.clone(), "s", clock.clone(), started));
    let reading = hawser_common::tasks::Tasks::new().spawn(reading);
    running.await.unwrap();
    let (other, _) = worker(&etcd.endpoint(), "b", TTL).await;
    knows(&client, 2).await;
    proxy.cut();
    let cut = clock.now();
    let (ended, tokens, code) = reading.await.unwrap();
    assert!(tokens >= 5 && code == ErrorCode::Unavailable, "{code:?} after {tokens} tokens");
    let lasted = ended.since(cut);
    assert!(lasted <= Duration::from_millis(TTL + 1_000), "served for {lasted:?} after the cut");
    assert_not_serving(&uri).await;
    // The store has given the session up no earlier than the worker did: whoever serves it now does so alone.
    eventually("the session is served by the other group", async || {
        let answer = run(&client, token_request("s", &words(702, 40), 3)).await;
        answer.is_ok_and(|answer| answer.group == "b")
    })
    .await;
    assert!(clock.now() > ended);
    proxy.mend();
    knows(&client, 2).await;
    drop(client);
    for worker in [cut_off, other] {
        worker.stop().await;
    }
    router.stop().await;
}

async fn assert_not_serving(uri: &str) {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let channel = tonic::transport::Endpoint::new(uri.to_owned()).unwrap().connect().await.unwrap();
    let health = HealthClient::new(channel);
    eventually("its health is NOT_SERVING", async || {
        let request = tonic_health::pb::HealthCheckRequest { service: "hawser.v1.Worker".to_owned() };
        let status = health.clone().check(request).await.unwrap().into_inner().status();
        status == ServingStatus::NotServing
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_reach_etcd_says_so() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    let model = hawser_tests::demo_model();
    let mut arguments = vec!["worker", "--model", model.to_str().unwrap(), "--etcd", &nobody];
    arguments.extend(["--set", "join_wait_s=0"]);
    let output = crate::process::run(&arguments, "").await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&nobody) && error.contains("--etcd"), "{error}");
    let output = crate::process::run(&["router", "--etcd", "nowhere"], "").await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("nowhere"), "{error}");
}

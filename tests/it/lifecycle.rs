//! The life of a group as people see it: what it lists, when it is in the cluster, what it waits for, how it goes.

use std::time::Duration;

use hawser_client::{Client, Frame, wire};
use hawser_placement::conformance::EtcdServer;

use crate::cluster::{chat_request, eventually, run};
use crate::process::{Server, Typed, connect};
use crate::ranks::{free_address, start_leader};

/// A group that computes nothing, and whose rows serve no other session.
const SIMULATED: [&str; 6] = [
    "--engine",
    "simulated",
    "--set",
    "worker.simulated.time_scale=0",
    "--set",
    "worker.share_prefixes=false",
];

pub(crate) fn simulated<'a>(joins: [&'a str; 2], group: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["worker", joins[0], joins[1], "--group", group];
    arguments.extend(SIMULATED);
    arguments.extend(more);
    arguments
}

async fn start(joins: [&str; 2], group: &str, more: &[&str]) -> (Server, String) {
    let mut worker = Server::start(&simulated(joins, group, more));
    let uri = worker.uri_after(&format!("group {group} serves at ")).await;
    (worker, uri)
}

/// One turn with the whole conversation, and its group.
async fn say(client: &Client, session: &str, text: &str) -> String {
    run(client, chat_request(session, &[(wire::Role::User, text)], 4)).await.unwrap().group
}

pub(crate) async fn groups(client: &Client) -> Vec<wire::Group> {
    client.list_groups().await.unwrap_or_default()
}

/// Every session that is listed, with its group; `None` where the list is not whole.
async fn listed(client: &Client) -> Option<Vec<(String, String)>> {
    let listed = client.list_sessions(100).await.ok()?;
    let pairs = listed.sessions.into_iter().map(|session| (session.id, session.group));
    (!listed.truncated).then(|| pairs.collect())
}

fn pair(session: &str, group: &str) -> (String, String) {
    (session.to_owned(), group.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_stopped_beyond_its_lease_has_only_what_it_has_a_claim_for() {
    let (router, uri) = Server::router(&[]).await;
    let joins = ["--router", uri.as_str()];
    let (a, _) = start(joins, "a", &["--set", "worker.lease_ttl_ms=1000"]).await;
    let client = connect(&uri).await;
    let (long, short) = ("word ".repeat(200), "word");
    for (session, text) in [("moved", long.as_str()), ("left", short)] {
        assert_eq!(say(&client, session, text).await, "a");
    }
    assert_eq!(listed(&client).await, Some(vec![pair("left", "a"), pair("moved", "a")]));
    let (b, _) = start(joins, "b", &[]).await;
    a.freeze();
    eventually("the lease is lost", async || groups(&client).await.iter().all(|group| group.id == "b")).await;
    assert_eq!(say(&client, "moved", &long).await, "b");
    a.thaw();
    eventually("it is back", async || groups(&client).await.len() == 2).await;
    eventually("all groups list theirs", async || listed(&client).await.is_some()).await;
    assert_eq!(
        listed(&client).await,
        Some(vec![pair("moved", "b")]),
        "nobody has `left`, and `moved` has one owner"
    );
    let of_a = async || {
        let groups = groups(&client).await;
        groups.into_iter().find(|group| group.id == "a").and_then(|group| group.capacity).unwrap_or_default()
    };
    eventually("its sessions are not counted", async || of_a().await.sessions == 0).await;
    eventually("the rows of `moved` were given back", async || {
        let left = of_a().await.slots_idle;
        left > 0 && left < 200
    })
    .await;
    let owner = say(&client, "left", short).await;
    let mut expected = vec![pair("left", &owner), pair("moved", "b")];
    expected.sort();
    assert_eq!(listed(&client).await, Some(expected));
    drop(client);
    a.stop().await;
    b.stop().await;
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_and_lets_go_of_the_sessions() {
    let Some(etcd) = EtcdServer::start(None).await else { return };
    let endpoint = etcd.endpoint();
    let (router, uri) = Server::router(&["--etcd", &endpoint]).await;
    let client = connect(&uri).await;
    // A lease that outlives the test, and turns that take a while.
    let slow = ["--set", "worker.lease_ttl_ms=60000", "--set", "worker.simulated.time_scale=1"];
    let mut worker = Server::start_heard(&simulated(["--etcd", &endpoint], "a", &slow));
    worker.line_with("group a serves at ").await;
    eventually("the group is known", async || groups(&client).await.len() == 1).await;
    let mut request = chat_request("s", &[(wire::Role::User, "word")], 100_000);
    if let Some(sampling) = &mut request.sampling {
        sampling.ignore_eos = true;
    }
    let mut frames = client.generate(request, None).await.unwrap();
    while !matches!(frames.next().await.unwrap(), Some(Frame::Chunk(_))) {}
    worker.terminate();
    eventually("it drains", async || groups(&client).await.iter().all(|group| group.draining)).await;
    worker.terminate();
    let (code, said) = worker.outcome().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("second signal") && said.contains("lease was given back"), "{said}");
    eventually("the lease was revoked", async || groups(&client).await.is_empty()).await;
    drop((frames, client));
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_joins_only_once_its_ranks_are_there() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let (meeting, listen) = (free_address(), free_address());
    let mut leader = start_leader(&uri, &meeting, &["--listen", &listen]).await;
    let line = leader.line_with("group g waits for ").await;
    assert!(line.contains("rank 1 of 2"), "{line}");
    let channel = tonic::transport::Endpoint::new(format!("http://{listen}")).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    let mut status = async || {
        let request = HealthCheckRequest { service: "hawser.v1.Worker".to_owned() };
        health.check(request).await.unwrap().into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::NotServing);
    assert_eq!(groups(&client).await, []);
    let all = client.list_groups_and_departed().await.unwrap();
    assert!(all.is_empty(), "it was never in the cluster: {all:?}");
    let arguments = crate::ranks::follower_arguments(&meeting);
    let follower = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    leader.uri_after("group g serves at ").await;
    assert_eq!(status().await, ServingStatus::Serving);
    assert_eq!(groups(&client).await.len(), 1);
    drop(client);
    leader.stop().await;
    drop(follower);
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_waits_can_be_stopped() {
    let (router, uri) = Server::router(&[]).await;
    let meeting = free_address();
    let mut leader = start_leader(&uri, &meeting, &[]).await;
    leader.line_with("group g waits for ").await;
    tokio::time::timeout(Duration::from_secs(20), leader.stop()).await.expect("it ends");
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_its_router_and_joins_it() {
    let listen = free_address();
    let uri = format!("http://{listen}");
    let mut worker = Server::start(&simulated(["--router", &uri], "a", &[]));
    let line = worker.line_with("waiting for ").await;
    assert!(line.contains(&format!("the router at {uri}")), "{line}");
    let mut router = Server::start(&["router", "--listen", &listen]);
    router.line_with("router listens on ").await;
    worker.line_with("group a serves at ").await;
    let client = connect(&uri).await;
    assert_eq!(say(&client, "s", "word").await, "a");
    drop(client);
    worker.stop().await;
    router.stop().await;
}

/// The wait begins when a line was typed, and not when the router was found to have lost the owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_counts_the_wait_for_an_owner_that_hangs() {
    let (router, uri) = Server::router(&[]).await;
    let mut workers = Vec::new();
    for group in ["a", "b"] {
        let more = ["--set", "worker.lease_ttl_ms=3000"];
        workers.push((group, start(["--router", &uri], group, &more).await.0));
    }
    let mut chat = Typed::start(&["chat", "--server", &uri, "--session", "talk", "--max-tokens", "4"]);
    let told = chat.type_until("Hello.", "first token ").await;
    let (owner, hangs) = workers.iter().find(|(group, _)| told.contains(&format!("[{group} · "))).unwrap();
    hangs.freeze();
    let told = chat.type_until("And again.", "first token ").await;
    assert!(!told.contains(&format!("[{owner} · ")), "{told}");
    let shown = told.split("first token ").nth(1).unwrap();
    let mut words = shown.split(' ');
    let (number, unit) = (words.next().unwrap().parse::<f64>().unwrap(), words.next().unwrap());
    // A lease of three seconds has two left at least.
    assert!(unit == "s" && number >= 1.5, "{told}");
    chat.finish().await;
    hangs.thaw();
    for (_, worker) in workers {
        worker.stop().await;
    }
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_rank_is_taken_is_told_who_has_it() {
    let (router, uri) = Server::router(&[]).await;
    let meeting = free_address();
    let mut leader = start_leader(&uri, &meeting, &[]).await;
    let arguments = crate::ranks::follower_arguments(&meeting);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let follower = Server::start(&arguments);
    leader.line_with("group g serves at ").await;
    let (code, said) = Server::start_heard(&arguments).outcome().await;
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: rank 1 of 2 is taken") && last.contains("127.0.0.1:"), "{said}");
    assert_eq!(said.matches("not in the group; trying on").count(), 1, "once for all tries: {said}");
    let client = connect(&uri).await;
    assert_eq!(groups(&client).await.len(), 1, "the group did not notice");
    // Whoever comes after the rank has gone is let in.
    follower.kill().await;
    let other = Server::start(&arguments);
    crate::ranks::served(&client, Duration::from_secs(60)).await;
    drop((other, client));
    leader.stop().await;
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_cannot_talk_tls_to_a_group_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let crate::secured::Files { cert, key, .. } = crate::secured::certificates(folder.path());
    let tls = [format!("worker.tls.cert_file={cert:?}"), format!("worker.tls.key_file={key:?}")];
    let mut router = Server::start_heard(&["router", "--listen", "127.0.0.1:0"]);
    let uri = router.uri_after("router listens on ").await;
    let more = ["--set", &tls[0], "--set", &tls[1]];
    let (worker, address) = start(["--router", &uri], "a", &more).await;
    assert!(address.starts_with("https://"), "{address}");
    worker.stop().await;
    router.terminate();
    let (code, said) = router.outcome().await;
    assert_eq!(code, Some(0), "{said}");
    let warned: Vec<_> =
        said.lines().filter(|line| line.contains("WARN") && line.contains("group a")).collect();
    assert!(warned.len() == 1 && warned[0].contains("router.worker_tls.ca_file"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_group_forms_a_rank_is_its_first_process_until_that_one_hangs() {
    let (router, uri) = Server::router(&[]).await;
    let meeting = free_address();
    let three = ["--set", "worker.world=3"];
    let mut leader = start_leader(&uri, &meeting, &three).await;
    let of_three = async |leader: &mut Server, ranks: &str| {
        leader.line_with(&format!("group g waits for {ranks} of 3")).await;
    };
    of_three(&mut leader, "ranks 1, 2").await;
    let arguments = crate::ranks::follower_arguments(&meeting);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(three);
    let first = Server::start(&arguments);
    of_three(&mut leader, "rank 2").await;
    let (code, said) = Server::start_heard(&arguments).outcome().await;
    assert!(code == Some(1) && said.contains("rank 1 of 3 is taken"), "{said}");
    first.freeze();
    of_three(&mut leader, "ranks 1, 2").await;
    let second = Server::start(&arguments);
    of_three(&mut leader, "rank 2").await;
    first.kill().await;
    drop(second);
    leader.stop().await;
    router.stop().await;
}

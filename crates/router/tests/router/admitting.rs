//! What one tenant may take: sessions, places, calls a second; and that others do not feel it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_proto::{fault, v1};
use hawser_router::{ApiKey, Quota, Router, RouterOptions};

use crate::cluster::{Cluster, LONG, options, request};
use crate::keys::{Keyed, entry, keyed, turn, with_key};
use crate::worker::{Script, Then};

/// A cluster of one group, and clients of the tenants `a` and `b`, which have these limits.
async fn two_tenants(limits: &str, base: RouterOptions) -> (Cluster, [Keyed; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (ApiKey::draw(), ApiKey::draw());
    let text = entry(&a, "a", false) + &entry(&b, "b", false) + limits;
    let (keyed, _) = keyed(folder.path(), &text);
    let cluster = Cluster::start(1, RouterOptions { auth: keyed.auth, ..base }).await;
    let clients = [with_key(&cluster, &a), with_key(&cluster, &b)];
    (cluster, clients)
}

async fn open(client: &Keyed, session: String) -> Result<(), hawser_proto::Fault> {
    let mut client = client.clone();
    let opened = client.open_session(v1::OpenSessionRequest { session, ..Default::default() }).await;
    opened.map(drop).map_err(|status| fault(&status))
}

#[tokio::test]
async fn p7_a_tenant_that_opens_100_000_sessions_is_stopped_at_its_quota_and_others_are_not() {
    const QUOTA: usize = 500;
    let limits = format!("[tenants.a]\nmax_sessions = {QUOTA}\n");
    let (cluster, [a, b]) = two_tenants(&limits, options()).await;
    let opens = (0..100_000).map(|s| open(&a, format!("flood-{s}")));
    let answers = stream::iter(opens).buffer_unordered(64);
    let (mut opened, mut refused) = (0, 0);
    futures_util::pin_mut!(answers);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(()) => opened += 1,
            Err(fault) => {
                assert_eq!(fault.code, ErrorCode::Exhausted, "{fault}");
                assert!(fault.retry_after.is_some() && fault.message.contains("500 are allowed"), "{fault}");
                refused += 1;
                if refused == 50_000 {
                    // In the middle of the flood, another tenant opens at once.
                    open(&b, "calm".to_owned()).await.unwrap();
                }
            }
        }
    }
    assert_eq!((opened, refused), (QUOTA, 100_000 - QUOTA));
    // What the router holds is what the store holds.
    assert_eq!(cluster.state().await.claims.len(), QUOTA + 1);
    // Known sessions go on, and a place that becomes free can be taken.
    assert_eq!(turn(&mut a.clone(), request("flood-0")).await.unwrap().1, 1);
    a.clone().close_session(v1::CloseSessionRequest { session: "flood-0".into() }).await.unwrap();
    let again = async { while open(&a, "after".to_owned()).await.is_err() {} };
    tokio::time::timeout(LONG, again).await.unwrap();
    cluster.assert_idle().await;
}

#[tokio::test]
async fn p7_routers_that_race_overshoot_a_quota_by_little() {
    const QUOTA: usize = 100;
    let quota = Quota { max_sessions: QUOTA as u64, ..Quota::default() };
    let cluster = Cluster::start(2, RouterOptions { quota: quota.clone(), ..options() }).await;
    let more = RouterOptions { quota, ..options() };
    let other = Router::start(&more, Arc::clone(&cluster.store) as _, None, Clock::system()).unwrap();
    assert!(other.wait_for_groups(2, LONG).await);
    let clients = [cluster.client.clone(), crate::cluster::client(&other)];
    let opens = (0..1_000).map(|s| {
        let mut client = clients[s % 2].clone();
        let request = v1::OpenSessionRequest { session: format!("s{s}"), ..Default::default() };
        async move { client.open_session(request).await.is_ok() }
    });
    let opened: Vec<_> = stream::iter(opens).buffer_unordered(256).collect().await;
    let opened = opened.into_iter().filter(|opened| *opened).count();
    println!("{opened} opened of {QUOTA} allowed");
    assert!((QUOTA..=QUOTA + 64).contains(&opened), "{opened}");
}

#[tokio::test]
async fn every_method_needs_a_place_but_the_operators_view_of_a_full_router() {
    let quota = Quota { max_queued: 0, ..Quota::default() };
    let cluster = Cluster::start(1, RouterOptions { max_in_flight: 1, quota, ..options() }).await;
    cluster.workers[0].script(Script { then: Then::Hang, ..Script::default() });
    let mut client = cluster.client.clone();
    let held = client.generate(request("held")).await.unwrap().into_inner();
    let session = || "s".to_owned();
    let answers = [
        ("Generate", client.generate(request("s")).await.map(drop)),
        (
            "OpenSession",
            client
                .open_session(v1::OpenSessionRequest { session: session(), ..Default::default() })
                .await
                .map(drop),
        ),
        (
            "ForkSession",
            client
                .fork_session(v1::ForkSessionRequest { session: session(), fork: "t".to_owned() })
                .await
                .map(drop),
        ),
        (
            "CloseSession",
            client.close_session(v1::CloseSessionRequest { session: session() }).await.map(drop),
        ),
        (
            "DescribeSession",
            client.describe_session(v1::DescribeSessionRequest { session: session() }).await.map(drop),
        ),
        (
            "InspectSession",
            client.inspect_session(v1::InspectSessionRequest { session: session() }).await.map(drop),
        ),
        ("ListSessions", client.list_sessions(v1::ListSessionsRequest::default()).await.map(drop)),
        ("ListModels", client.list_models(v1::ListModelsRequest::default()).await.map(drop)),
        ("Tokenize", client.tokenize(v1::TokenizeRequest::default()).await.map(drop)),
        (
            "DescribeGroup",
            client.describe_group(v1::DescribeGroupRequest { group: "group-0".to_owned() }).await.map(drop),
        ),
    ];
    for (method, answer) in answers {
        let code = answer.map_err(|status| fault(&status).code);
        assert_eq!(code, Err(ErrorCode::Exhausted), "{method}");
    }
    client.list_groups(v1::ListGroupsRequest::default()).await.unwrap();
    drop(held);
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_flood_of_one_tenant_leaves_the_other_its_turn() {
    let few = RouterOptions { max_in_flight: 2, queue_wait_ms: 60_000, ..options() };
    let (cluster, [a, b]) = two_tenants("[tenants.a]\nmax_queued = 1000\n", few).await;
    cluster.workers[0].script(Script { then: Then::Hang, ..Script::default() });
    // Both places are taken, and then a hundred calls of the same tenant wait.
    let mut held = Vec::new();
    for s in 0..2 {
        held.push(a.clone().generate(request(&format!("held-{s}"))).await.unwrap().into_inner());
    }
    cluster.workers[0].script(Script::default());
    let (tasks, order) = (Tasks::new(), Arc::new(Mutex::new(Vec::new())));
    let call = |client: &Keyed, session: String| {
        let (mut client, order) = (client.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            turn(&mut client, request(&session)).await.unwrap();
            order.lock().unwrap().push(session);
        })
    };
    let flood: Vec<_> = (0..100).map(|s| call(&a, format!("flood-{s}"))).collect();
    eventually(|| cluster.router.queued() == 100).await;
    let calm = call(&b, "calm".to_owned());
    eventually(|| cluster.router.queued() == 101).await;
    // One place becomes free: for the flood's first, then for the other tenant's only call, before 99 that came earlier.
    held.pop();
    calm.await.unwrap();
    for turn in flood {
        turn.await.unwrap();
    }
    let place = order.lock().unwrap().iter().position(|session| session == "calm").unwrap();
    assert!(place <= 5, "the calm tenant was served as number {place}");
    drop(held);
    cluster.assert_idle().await;
    assert_eq!(cluster.router.queued(), 0);
}

async fn eventually(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("it did not happen");
}

#[tokio::test]
async fn a_tenant_at_its_limit_waits_its_time_and_is_refused_with_a_hint() {
    let (cluster, [a, b]) = two_tenants(
        "[tenants.a]\nmax_in_flight = 1\nmax_queued = 1\n",
        RouterOptions { queue_wait_ms: 50, ..options() },
    )
    .await;
    cluster.workers[0].script(Script { then: Then::Hang, ..Script::default() });
    let held = a.clone().generate(request("held")).await.unwrap().into_inner();
    let waited = open(&a, "late".to_owned()).await.unwrap_err();
    assert_eq!(waited.code, ErrorCode::Exhausted);
    assert!(waited.retry_after.is_some() && waited.message.contains("1 of a tenant"), "{waited}");
    let both = tokio::join!(open(&a, "x".to_owned()), open(&a, "y".to_owned()));
    assert!(both.0.is_err() && both.1.is_err(), "{both:?}");
    open(&b, "z".to_owned()).await.unwrap();
    drop(held);
    cluster.assert_idle().await;
    open(&a, "x".to_owned()).await.unwrap();
}

#[tokio::test]
async fn calls_beyond_the_rate_are_refused_with_the_time_to_wait() {
    // One a second after a burst of two, so that a slow machine does not refill it in this test.
    let (_cluster, [a, b]) = two_tenants("[tenants.a]\nrequests_per_s = 1\nburst = 2\n", options()).await;
    let mut refused = Vec::new();
    for s in 0..20 {
        if let Err(fault) = open(&a, format!("s{s}")).await {
            refused.push(fault);
        }
        open(&b, format!("s{s}")).await.unwrap();
    }
    assert!(!refused.is_empty());
    for fault in refused {
        assert_eq!(fault.code, ErrorCode::Exhausted);
        assert!(fault.retry_after.is_some_and(|wait| wait <= Duration::from_secs(1)), "{fault:?}");
    }
}

//! What sessions are called: handles, ids that look alike, one id over several models.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_proto::{fault, v1};
use hawser_router::{ApiKey, AuthOptions, Router, RouterOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cluster::{Cluster, LONG, client, options, request, turn};
use crate::keys::{entry, keyed, with_key};

fn with_secret(folder: &std::path::Path, base: RouterOptions) -> RouterOptions {
    let path = folder.join("secret");
    std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
    let auth = AuthOptions { handle_secret_file: Some(path), ..base.auth.clone() };
    RouterOptions { auth, ..base }
}

#[tokio::test]
async fn p6_a_handle_comes_first_is_opaque_and_is_good_for_its_tenant_only() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (ApiKey::draw(), ApiKey::draw());
    let (base, _) = keyed(folder.path(), &(entry(&a, "a", false) + &entry(&b, "b", false)));
    let cluster = Cluster::start(2, with_secret(folder.path(), base)).await;
    let (mut as_a, mut as_b) = (with_key(&cluster, &a), with_key(&cluster, &b));
    let answer = as_a.generate(request("agent-7")).await.unwrap();
    // In the initial metadata: no frame was read yet.
    let handle = answer.metadata().get("hawser-session").unwrap().to_str().unwrap().to_owned();
    assert!(handle.starts_with("hs1.") && !handle.contains("agent-7"), "{handle}");
    let mut stream = answer.into_inner();
    let first = stream.message().await.unwrap().unwrap().frame;
    let Some(v1::generate_response::Frame::Placed(placed)) = first else { panic!("{first:?}") };
    assert_eq!(placed.session, handle);
    while stream.message().await.unwrap().is_some() {}

    // The id and the handle name the same session.
    assert_eq!(crate::keys::turn(&mut as_a, request(&handle)).await.unwrap().1, 2);
    assert_eq!(crate::keys::turn(&mut as_a, request("agent-7")).await.unwrap().1, 3);
    let described = as_a.describe_session(v1::DescribeSessionRequest { session: handle.clone() }).await;
    assert_eq!(described.unwrap().into_inner().session.unwrap().turns, 3);
    let opened = as_a.open_session(v1::OpenSessionRequest::default()).await.unwrap();
    assert!(opened.metadata().get("hawser-session").unwrap().to_str().unwrap().starts_with("hs1."));

    let mut wrong = vec![format!("{handle}x"), handle[..handle.len() - 1].to_owned(), "hs1.".to_owned()];
    let seed: u64 = 20_261_130;
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..50 {
        let mut bytes = handle.clone().into_bytes();
        let place = rng.random_range(4..bytes.len());
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        wrong.push(String::from_utf8(bytes).unwrap());
    }
    let mut texts = BTreeMap::new();
    for handle in &wrong {
        let refused = crate::keys::turn(&mut as_a, request(handle)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Invalid, "{handle}");
        *texts.entry(refused.message).or_insert(0) += 1;
    }
    // Another tenant hears the same, whether the handle was one or not.
    let foreign = crate::keys::turn(&mut as_b, request(&handle)).await.unwrap_err();
    assert_eq!((foreign.code, texts.len()), (ErrorCode::Invalid, 1));
    assert!(texts.contains_key(&foreign.message), "{foreign}");
    let close = v1::CloseSessionRequest { session: handle.clone() };
    assert_eq!(fault(&as_b.close_session(close).await.unwrap_err()).code, ErrorCode::Invalid);
    assert_eq!(crate::keys::turn(&mut as_a, request(&handle)).await.unwrap().1, 4);
}

#[tokio::test]
async fn without_a_secret_the_handle_is_the_id() {
    let cluster = Cluster::start(1, options()).await;
    assert_eq!(cluster.turn("agent-7").await.unwrap().header.as_deref(), Some("agent-7"));
    assert_eq!(
        cluster.turn("hs1.abc").await.unwrap_err().code,
        ErrorCode::Invalid,
        "it would pass for a handle"
    );
}

#[tokio::test]
async fn p5_ten_thousand_ids_that_differ_in_the_end_spread_evenly() {
    const GROUPS: usize = 4;
    const SESSIONS: usize = 10_000;
    let cluster = Cluster::start(GROUPS, options()).await;
    let opens = (0..SESSIONS).map(|s| {
        // The first 256 differ in nothing but the last byte's place in the alphabet of ids, the others in the end.
        let (mut client, session) = (cluster.client.clone(), format!("session-{s}"));
        async move {
            let opened = client.open_session(v1::OpenSessionRequest { session, ..Default::default() }).await;
            opened.unwrap().into_inner().session.unwrap()
        }
    });
    let opened: Vec<_> = stream::iter(opens).buffer_unordered(128).collect().await;
    let mut shares: HashMap<_, usize> = HashMap::new();
    for session in &opened {
        *shares.entry(session.group.clone()).or_default() += 1;
    }
    let even = SESSIONS / GROUPS;
    assert_eq!(shares.len(), GROUPS);
    assert!(shares.values().all(|&n| n > even * 8 / 10 && n < even * 12 / 10), "{shares:?}");
    // Independent: "session-1" goes, and "session-12" stays.
    let of: HashMap<_, _> = opened.iter().map(|session| (session.id.as_str(), &session.group)).collect();
    let mut client = cluster.client.clone();
    client.close_session(v1::CloseSessionRequest { session: "session-1".into() }).await.unwrap();
    let state = cluster.state().await;
    assert_eq!(state.claims.len(), SESSIONS - 1);
    for (key, owner) in &state.claims {
        assert_eq!(of[key.session.as_str()], owner.group.as_str());
    }
    assert_eq!(cluster.turn("session-12").await.unwrap().group, *of["session-12"]);
    cluster.assert_idle().await;
}

#[tokio::test]
async fn p4_one_id_over_three_models_is_three_sessions_that_stay() {
    let models = ["a", "b", "c", "a", "b", "c"];
    let cluster = Cluster::with_models(&models, options()).await;
    let other = Router::start(&options(), Arc::clone(&cluster.store) as _, None, Clock::system()).unwrap();
    assert!(other.wait_for_groups(models.len(), LONG).await);
    let mut clients = [cluster.client.clone(), client(&other)];
    let ask = |model: &str| v1::GenerateRequest { model: model.into(), ..request("agent") };
    let mut owners: BTreeMap<&str, String> = BTreeMap::new();
    for number in 1..6 {
        for (i, model) in ["a", "b", "c"].into_iter().enumerate() {
            let done = turn(&mut clients[(number as usize + i) % 2], ask(model)).await.unwrap();
            assert_eq!(done.number, number, "{model} goes on where it was");
            let owner = owners.entry(model).or_insert_with(|| done.group.clone());
            assert_eq!(*owner, done.group, "{model} stays");
        }
    }
    assert_eq!(cluster.state().await.claims.len(), 3);
    // The handle names the session of its model, and the id alone the first.
    let third = turn(&mut clients[0], ask("c")).await.unwrap();
    let by_handle = v1::GenerateRequest { model: "c".into(), ..request(third.header.as_deref().unwrap()) };
    assert_eq!(turn(&mut clients[1], by_handle).await.unwrap().number, 7);
    assert_eq!(turn(&mut clients[1], request("agent")).await.unwrap().group, owners["a"]);
    // The first one closed, the others are still found.
    let close = v1::CloseSessionRequest { session: "agent".into() };
    clients[0].close_session(close).await.unwrap();
    let gone = async { while cluster.state().await.claims.len() > 2 {} };
    tokio::time::timeout(LONG, gone).await.unwrap();
    assert_eq!(turn(&mut clients[0], ask("b")).await.unwrap().number, 6);
    assert_eq!(turn(&mut clients[0], ask("a")).await.unwrap().number, 1);
}

#[tokio::test]
async fn p4_first_turns_on_three_models_at_once_do_not_meet() {
    let cluster = Cluster::with_models(&["a", "b", "c"], options()).await;
    let other = Router::start(&options(), Arc::clone(&cluster.store) as _, None, Clock::system()).unwrap();
    assert!(other.wait_for_groups(3, LONG).await);
    let clients = [cluster.client.clone(), client(&other)];
    for s in 0..20 {
        let turns = ["a", "b", "c"].into_iter().enumerate().map(|(i, model)| {
            let mut client = clients[i % 2].clone();
            let request = v1::GenerateRequest { model: model.into(), ..request(&format!("agent-{s}")) };
            async move { turn(&mut client, request).await.map(|turn| turn.group) }
        });
        let groups: Result<Vec<_>, _> = join_all(turns).await.into_iter().collect();
        assert_eq!(groups.unwrap(), ["g0", "g1", "g2"]);
    }
    assert_eq!(cluster.state().await.claims.len(), 60);
    cluster.assert_idle().await;
}

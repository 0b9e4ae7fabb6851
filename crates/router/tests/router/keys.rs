//! API keys: who may call, as whom, and that keys are replaced while the router runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::tls::ClientTls;
use hawser_common::{Coded as _, ErrorCode, Secret};
use hawser_placement::Store as _;
use hawser_proto::v1::hawser_client::HawserClient;
use hawser_proto::{Bearer, Fault, fault, v1};
use hawser_router::{ApiKey, AuthOptions, Router, RouterOptions};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::cluster::{Cluster, LONG, channel, options, request};
use crate::remote_store::RemoteStore;

pub(crate) type Keyed = HawserClient<InterceptedService<Channel, Bearer>>;

/// The entry of a key in the file.
pub(crate) fn entry(key: &ApiKey, tenant: &str, operator: bool) -> String {
    let sha256 = key.sha256();
    format!("[[keys]]\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\noperator = {operator}\n")
}

/// Options of a router that reads its keys from `keys.toml` in `folder`.
pub(crate) fn keyed(folder: &Path, text: &str) -> (RouterOptions, PathBuf) {
    let path = folder.join("keys.toml");
    std::fs::write(&path, text).unwrap();
    let auth = AuthOptions { keys_file: Some(path.clone()), poll_ms: 10, ..AuthOptions::default() };
    (RouterOptions { auth, ..options() }, path)
}

pub(crate) fn with_key(cluster: &Cluster, key: &ApiKey) -> Keyed {
    with_text(cluster, key.secret().expose())
}

fn with_text(cluster: &Cluster, key: &str) -> Keyed {
    let bearer = Bearer::new(Some(&Secret::new(key))).unwrap();
    HawserClient::with_interceptor(channel(&cluster.router), bearer)
}

/// Reads a turn to its end; gives its group and its number.
pub(crate) async fn turn(client: &mut Keyed, request: v1::GenerateRequest) -> Result<(String, u32), Fault> {
    use v1::generate_response::Frame;
    let mut stream = client.generate(request).await.map_err(|status| fault(&status))?.into_inner();
    let (mut group, mut number) = (String::new(), 0);
    while let Some(response) = stream.message().await.map_err(|status| fault(&status))? {
        match response.frame {
            Some(Frame::Placed(placed)) => group = placed.group,
            Some(Frame::Finished(finished)) => number = finished.turn,
            _ => {}
        }
    }
    Ok((group, number))
}

#[tokio::test]
async fn without_a_known_key_nothing_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let good = ApiKey::draw();
    let cluster = Cluster::start(1, keyed(folder.path(), &entry(&good, "a", false)).0).await;
    let bare = cluster.turn("s").await.unwrap_err();
    assert_eq!(bare.code, ErrorCode::Unauthenticated);
    assert!(bare.message.contains("authorization: Bearer"), "{bare}");
    let sha256 = good.sha256();
    for wrong in ["x", sha256.as_str(), &good.secret().expose()[1..]] {
        let mut client = with_text(&cluster, wrong);
        let refused = turn(&mut client, request("s")).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated, "{wrong}");
        assert!(!refused.message.contains(wrong) || wrong == "x", "the key is not repeated: {refused}");
        // Before anything is looked at: an illegal request says nothing else.
        let illegal = client.close_session(v1::CloseSessionRequest::default()).await.unwrap_err();
        assert_eq!(fault(&illegal).code, ErrorCode::Unauthenticated);
        let codes = [
            client.list_groups(v1::ListGroupsRequest::default()).await.map(drop).unwrap_err(),
            client.list_models(v1::ListModelsRequest {}).await.map(drop).unwrap_err(),
            client.list_sessions(v1::ListSessionsRequest::default()).await.map(drop).unwrap_err(),
            client.open_session(v1::OpenSessionRequest::default()).await.map(drop).unwrap_err(),
            client.tokenize(v1::TokenizeRequest::default()).await.map(drop).unwrap_err(),
        ];
        assert!(codes.iter().all(|status| fault(status).code == ErrorCode::Unauthenticated), "{codes:?}");
    }
    assert_eq!(turn(&mut with_key(&cluster, &good), request("s")).await.unwrap().1, 1);
    assert!(cluster.state().await.claims.keys().all(|key| key.tenant.as_str() == "a"));
    cluster.assert_idle().await;
}

#[tokio::test]
async fn tenants_have_sessions_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b, boss) = (ApiKey::draw(), ApiKey::draw(), ApiKey::draw());
    let text = entry(&a, "a", false) + &entry(&b, "b", false) + &entry(&boss, "ops", true);
    let cluster = Cluster::start(2, keyed(folder.path(), &text).0).await;
    let (mut as_a, mut as_b) = (with_key(&cluster, &a), with_key(&cluster, &b));
    for number in 1..3 {
        assert_eq!(turn(&mut as_a, request("s")).await.unwrap().1, number);
    }
    // The same id is another session to another tenant, and cannot be seen, closed or forked.
    let describe = || v1::DescribeSessionRequest { session: "s".into() };
    let unknown = fault(&as_b.describe_session(describe()).await.unwrap_err());
    assert_eq!(unknown.code, ErrorCode::NotFound);
    let fork = v1::ForkSessionRequest { session: "s".into(), fork: "mine".into() };
    assert_eq!(fault(&as_b.fork_session(fork).await.unwrap_err()).code, ErrorCode::NotFound);
    let close = v1::CloseSessionRequest { session: "s".into() };
    assert_eq!(as_b.close_session(close).await.unwrap().into_inner().slots_freed, 0);
    assert_eq!(turn(&mut as_b, request("s")).await.unwrap().1, 1);
    assert_eq!(turn(&mut as_a, request("s")).await.unwrap().1, 3);
    turn(&mut as_b, request("t")).await.unwrap();
    for (client, ids) in [(&mut as_a, vec!["s"]), (&mut as_b, vec!["s", "t"])] {
        let listed = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().into_inner();
        let listed: BTreeSet<_> = listed.sessions.into_iter().map(|session| session.id).collect();
        assert_eq!(listed.into_iter().collect::<Vec<_>>(), ids);
        let groups = client.list_groups(v1::ListGroupsRequest::default()).await.unwrap_err();
        assert_eq!(fault(&groups).code, ErrorCode::Forbidden);
    }
    let groups = with_key(&cluster, &boss).list_groups(v1::ListGroupsRequest::default()).await.unwrap();
    assert_eq!(groups.into_inner().groups.len(), 2);
}

#[tokio::test]
async fn only_operators_reach_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let (a, boss) = (ApiKey::draw(), ApiKey::draw());
    let text = entry(&a, "a", false) + &entry(&boss, "ops", true);
    let cluster = Cluster::start(0, keyed(folder.path(), &text).0).await;
    let uri = format!("http://{}", cluster.router.addr());
    let store = |key: Option<&ApiKey>| {
        RemoteStore::secured(&uri, &ClientTls::default(), key.map(ApiKey::secret)).unwrap()
    };
    for key in [None, Some(&a)] {
        let refused = store(key).grant(LONG).await.unwrap_err();
        assert_ne!(refused.code(), ErrorCode::Internal, "{refused}");
        assert!(refused.to_string().contains("key"), "{refused}");
    }
    store(Some(&boss)).grant(LONG).await.unwrap();
}

/// Until `wanted` is what a call with the key is told.
async fn until(client: &mut Keyed, wanted: Option<ErrorCode>) {
    let asking = async {
        loop {
            let answer = client.list_sessions(v1::ListSessionsRequest::default()).await;
            if answer.err().map(|status| fault(&status).code) == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, asking).await.expect("the keys were not read again");
}

#[tokio::test]
async fn keys_are_read_again_and_a_bad_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (ApiKey::draw(), ApiKey::draw());
    let (options, path) = keyed(folder.path(), &entry(&old, "a", false));
    let cluster = Cluster::start(1, options).await;
    let (mut as_old, mut as_new) = (with_key(&cluster, &old), with_key(&cluster, &new));
    until(&mut as_old, None).await;
    until(&mut as_new, Some(ErrorCode::Unauthenticated)).await;
    // As an orchestrator replaces a mounted secret: another file under the same name.
    let other = folder.path().join("next.toml");
    std::fs::write(&other, entry(&old, "a", false) + &entry(&new, "b", false)).unwrap();
    std::fs::rename(&other, &path).unwrap();
    until(&mut as_new, None).await;
    until(&mut as_old, None).await;

    std::fs::write(&path, "[[keys]]\ntenant = \"a\"\n").unwrap();
    // The bad file was looked at by the time that a good one after it is in effect.
    for _ in 0..20 {
        until(&mut as_old, None).await;
        until(&mut as_new, None).await;
    }
    std::fs::remove_file(&path).unwrap();
    for _ in 0..20 {
        until(&mut as_old, None).await;
    }
    std::fs::write(&path, entry(&new, "b", false)).unwrap();
    until(&mut as_old, Some(ErrorCode::Unauthenticated)).await;
    until(&mut as_new, None).await;
}

#[tokio::test]
async fn a_router_does_not_start_with_bad_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (options, path) = keyed(folder.path(), "");
    let cluster = Cluster::start(0, crate::cluster::options()).await;
    let start = |options: &RouterOptions| {
        let store = std::sync::Arc::clone(&cluster.store);
        Router::start(options, store as _, None, Clock::system()).unwrap_err()
    };
    let none = start(&options);
    assert!(none.to_string().contains("keys.toml") && none.to_string().contains("0 keys"), "{none}");
    assert_eq!(none.code(), ErrorCode::Invalid);
    std::fs::remove_file(path).unwrap();
    assert!(start(&options).to_string().contains("cannot be read"));
}

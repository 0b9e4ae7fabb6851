//! The rest of the surface: lists, models, refusals, health, reflection, stopping.

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_common::ErrorCode;
use hawser_common::clock::Clock;
use hawser_proto::{fault, v1};
use hawser_router::{Router, StartError};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::cluster::{Cluster, LONG, channel, client, options, placed, request, turn};
use crate::worker::{Script, Then};

#[tokio::test]
async fn refusals_say_what_to_do() {
    let empty = Cluster::start(0, options()).await;
    let none = empty.turn("s").await.unwrap_err();
    assert_eq!(none.code, ErrorCode::Unavailable);
    assert!(none.message.contains("hawser worker"), "{none}");

    let cluster = Cluster::with_models(&["small", "large"], options()).await;
    let mut client = cluster.client.clone();
    let ask = |session: &str, model: &str| v1::GenerateRequest { model: model.into(), ..request(session) };
    let unknown = turn(&mut client, ask("s", "medium")).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
    assert!(unknown.message.contains("large, small"), "{unknown}");
    let unnamed = turn(&mut client, ask("s", "")).await.unwrap_err();
    assert_eq!(unnamed.code, ErrorCode::Invalid);
    let illegal = turn(&mut client, ask("a b", "small")).await.unwrap_err();
    assert_eq!(illegal.code, ErrorCode::Invalid);
    let endless = turn(&mut client, ask("s", &"m".repeat(1000))).await.unwrap_err();
    assert_eq!(endless.code, ErrorCode::Invalid);
    // After the first turn the session's model is known.
    assert_eq!(turn(&mut client, ask("s", "small")).await.unwrap().group, "g0");
    assert_eq!(turn(&mut client, ask("s", "")).await.unwrap().group, "g0");
    assert_eq!(turn(&mut client, ask("t", "large")).await.unwrap().group, "g1");
}

#[tokio::test]
async fn sessions_are_opened_forked_described_inspected_listed_and_closed() {
    let cluster = Cluster::start(3, options()).await;
    let mut client = cluster.client.clone();
    let opened = client.open_session(v1::OpenSessionRequest::default()).await.unwrap().into_inner();
    let session = opened.session.unwrap();
    assert!(session.id.starts_with("s-"), "{}", session.id);
    let fork = v1::ForkSessionRequest { session: session.id.clone(), fork: "twin".into() };
    let forked = client.fork_session(fork).await.unwrap().into_inner().session.unwrap();
    assert_eq!(
        (forked.id.as_str(), &forked.group),
        ("twin", &session.group),
        "a fork lives where its source does"
    );
    let asked = v1::DescribeSessionRequest { session: "twin".into() };
    let described = client.describe_session(asked).await.unwrap().into_inner().session.unwrap();
    assert_eq!(described.group, session.group);
    let asked = v1::InspectSessionRequest { session: "twin".into() };
    let inspected = client.inspect_session(asked).await.unwrap().into_inner().session.unwrap();
    assert_eq!((inspected.id.as_str(), &inspected.group), ("twin", &session.group));
    for s in 0..10 {
        cluster.turn(&format!("t{s}")).await.unwrap();
    }
    let all = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().into_inner();
    let ids: BTreeSet<_> = all.sessions.iter().map(|session| session.id.clone()).collect();
    assert_eq!((ids.len(), all.truncated), (12, false));
    let some = client.list_sessions(v1::ListSessionsRequest { limit: 5 }).await.unwrap().into_inner();
    assert_eq!((some.sessions.len(), some.truncated), (5, true));
    cluster.worker(&session.group).kill();
    let partial = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().into_inner();
    assert!(partial.truncated && partial.sessions.len() < 12, "a group that is silent is not an empty one");
    let silent: Vec<_> = partial.silent.iter().map(|silent| silent.group.as_str()).collect();
    assert_eq!(silent, [session.group.as_str()]);
    assert!(!partial.silent[0].reason.is_empty() && all.silent.is_empty() && some.silent.is_empty());
    let asked = v1::DescribeGroupRequest { group: session.group.clone() };
    let described = client.describe_group(asked).await.unwrap().into_inner();
    assert!(described.state.is_none() && !described.silence.is_empty(), "{described:?}");
}

#[tokio::test]
async fn sessions_nobody_knows() {
    let cluster = Cluster::start(2, options()).await;
    let mut client = cluster.client.clone();
    let session = || "never".to_owned();
    let described = client.describe_session(v1::DescribeSessionRequest { session: session() }).await;
    assert_eq!(fault(&described.unwrap_err()).code, ErrorCode::NotFound);
    let inspected = client.inspect_session(v1::InspectSessionRequest { session: session() }).await;
    assert_eq!(fault(&inspected.unwrap_err()).code, ErrorCode::NotFound);
    let fork = v1::ForkSessionRequest { session: session(), fork: String::new() };
    assert_eq!(fault(&client.fork_session(fork).await.unwrap_err()).code, ErrorCode::NotFound);
    let closed = client.close_session(v1::CloseSessionRequest { session: session() }).await.unwrap();
    assert_eq!(closed.into_inner().slots_freed, 0);
    let empty = client.close_session(v1::CloseSessionRequest::default()).await.unwrap_err();
    assert_eq!(fault(&empty).code, ErrorCode::Invalid);
    cluster.assert_idle().await;
}

#[tokio::test]
async fn models_groups_and_tokens() {
    let cluster = Cluster::with_models(&["b", "a", "b"], options()).await;
    let mut client = cluster.client.clone();
    let models = client.list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    let seen: Vec<_> = models.iter().map(|m| (m.name.as_str(), m.groups, m.architecture.as_str())).collect();
    assert_eq!(seen, [("a", 1, "fake"), ("b", 2, "fake")]);
    let groups = client.list_groups(v1::ListGroupsRequest::default()).await.unwrap().into_inner().groups;
    let ids: Vec<_> = groups.iter().map(|g| (g.id.as_str(), g.capacity.unwrap().slots_total)).collect();
    assert_eq!(ids, [("g0", 1000), ("g1", 1000), ("g2", 1000)]);
    let describe = |group: &str| v1::DescribeGroupRequest { group: group.into() };
    let described = client.describe_group(describe("g2")).await.unwrap().into_inner();
    assert_eq!((described.group.unwrap().id.as_str(), described.state.unwrap().step), ("g2", 7));
    let unknown = client.describe_group(describe("g9")).await.unwrap_err();
    assert_eq!(fault(&unknown).code, ErrorCode::NotFound);
    let request = v1::TokenizeRequest { model: "a".into(), ..Default::default() };
    assert_eq!(client.tokenize(request).await.unwrap().into_inner().ids, [1, 2]);
    // A model whose only group is silent is still listed.
    cluster.worker("g1").kill();
    let models = client.list_models(v1::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!((models[0].name.as_str(), models[0].architecture.as_str()), ("a", ""));
    let described = client.describe_group(describe("g1")).await.unwrap().into_inner();
    assert_eq!((described.group.unwrap().id.as_str(), described.state), ("g1", None));
}

#[tokio::test]
async fn health_and_reflection_answer() {
    let cluster = Cluster::start(0, options()).await;
    let channel = channel(&cluster.router);
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "hawser.v1.Hawser"] {
        let mut watch =
            health.watch(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        let serving =
            async { while watch.message().await.unwrap().unwrap().status() != ServingStatus::Serving {} };
        tokio::time::timeout(LONG, serving).await.unwrap();
    }
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let mut reflection = ServerReflectionClient::new(channel);
    let list = tonic_reflection::pb::v1::ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let asked = reflection.server_reflection_info(futures_util::stream::iter([list])).await;
    let answer = asked.unwrap().into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let names: BTreeSet<_> = services.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains("hawser.v1.Hawser") && names.contains("grpc.health.v1.Health"), "{names:?}");
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_it() {
    let cluster = Cluster::start(0, options()).await;
    let taken = hawser_router::RouterOptions { listen: cluster.router.addr(), ..options() };
    let store = std::sync::Arc::clone(&cluster.store);
    let error = Router::start(&taken, store as _, None, Clock::system()).unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }));
    assert!(error.to_string().contains(&cluster.router.addr().to_string()), "{error}");
}

#[tokio::test]
async fn stopping_lets_streams_end_and_cuts_the_rest() {
    let cluster = Cluster::start(1, options()).await;
    let worker = cluster.workers[0].clone();
    worker.script(Script { then: Then::Hang, ..Script::default() });
    let mut stream = client(&cluster.router).generate(request("s")).await.unwrap().into_inner();
    placed(&mut stream).await;
    let mut health = HealthClient::new(channel(&cluster.router));
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert!(!cluster.router.shutdown(Duration::from_millis(50)).await, "a stream was still running");
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let error = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a short success"),
            Err(status) => break fault(&status),
        }
    };
    assert_eq!(error.code, ErrorCode::Unavailable);
    worker.until(|seen| seen.ended == 1).await;

    let cluster = Cluster::start(1, options()).await;
    assert_eq!(cluster.turn("s").await.unwrap().chunks, 3);
    assert!(cluster.router.shutdown(LONG).await);
}

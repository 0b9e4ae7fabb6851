//! Bad input and lost groups: a typed error that says what to do, and the next request works.

use std::time::Duration;

use hawser_client::{Client, Sampling, wire};
use hawser_common::tasks::Tasks;
use hawser_common::{Coded, ErrorCode};

use crate::cluster::{Cluster, chat_request, run, token_request, words};

async fn refused(client: &Client, request: wire::GenerateRequest, code: ErrorCode, says: &str) {
    let error = run(client, request.clone()).await.expect_err("the request is refused");
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(says), "{error:?} does not say {says:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_typed_error_and_the_next_one_works() {
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    let good = || chat_request("", &[(wire::Role::User, "Hello")], 4);
    let with = |change: &dyn Fn(&mut wire::GenerateRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let sampling =
        |change: &dyn Fn(&mut wire::Sampling)| with(&|request| change(request.sampling.as_mut().unwrap()));
    let invalid = ErrorCode::Invalid;
    refused(client, with(&|r| r.input = None), invalid, "input").await;
    refused(client, chat_request("", &[], 4), invalid, "messages").await;
    refused(client, token_request("", &[], 4), invalid, "ids").await;
    refused(client, token_request("", &[49_152], 4), invalid, "49152").await;
    refused(client, with(&|r| r.session = "a b".to_owned()), invalid, "session").await;
    refused(client, with(&|r| r.model = "gpt-17".to_owned()), ErrorCode::NotFound, "gpt-17").await;
    refused(client, sampling(&|s| s.temperature = Some(-1.0)), invalid, "temperature").await;
    refused(client, sampling(&|s| s.temperature = Some(f32::NAN)), invalid, "temperature").await;
    refused(client, sampling(&|s| s.top_p = Some(0.0)), invalid, "top_p").await;
    refused(client, sampling(&|s| s.max_tokens = Some(0)), invalid, "max_tokens").await;
    refused(client, sampling(&|s| s.stop = vec![String::new()]), invalid, "stop").await;
    refused(client, sampling(&|s| s.logprobs = Some(1_000)), invalid, "logprobs").await;
    let policy = wire::Retention { policy: "lru-ish".to_owned(), ..Default::default() };
    refused(client, with(&|r| r.retention = Some(policy.clone())), invalid, "lru-ish").await;
    let mut unknown_role = good();
    if let Some(wire::generate_request::Input::Conversation(conversation)) = &mut unknown_role.input {
        conversation.messages[0].role = 77;
    }
    refused(client, unknown_role, invalid, "role").await;
    let answer = run(client, good()).await.unwrap();
    assert!(!answer.tokens.is_empty());
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_for_an_unknown_session_says_so_and_leaves_nothing_behind() {
    let cluster = Cluster::start(1, |_| {}).await;
    let mut request = chat_request("nobody", &[(wire::Role::User, "Hello")], 4);
    if let Some(wire::generate_request::Input::Conversation(conversation)) = &mut request.input {
        conversation.extent = wire::Extent::Delta.into();
    }
    refused(&cluster.client, request, ErrorCode::SessionLost, "whole conversation").await;
    assert_eq!(cluster.client.list_sessions(0).await.unwrap().sessions, []);
    let missing = cluster.client.describe_session("nobody").await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound, "{missing}");
    assert_eq!(cluster.client.close_session("nobody").await.unwrap(), 0, "closing the unknown is no error");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_group_is_a_clear_refusal_not_a_hang() {
    let cluster = Cluster::start(0, |_| {}).await;
    let request = chat_request("s", &[(wire::Role::User, "Hello")], 4);
    refused(&cluster.client, request, ErrorCode::Unavailable, "hawser worker").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_turn_with_its_own_code_and_frees_everything() {
    let cluster = Cluster::start(1, |_| {}).await;
    let request = token_request("", &words(1, 2_000), 2_000);
    let mut frames = cluster.client.generate(request, Some(Duration::from_millis(300))).await.unwrap();
    let error = loop {
        match frames.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a turn of 4,000 tokens does not end in 300 ms"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), ErrorCode::Deadline, "{error}");
    drop(frames);
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_at_another_group_when_its_own_leaves() {
    let mut cluster = Cluster::start(2, |_| {}).await;
    let mut session = cluster.client.session().sampling(Sampling::greedy().max_tokens(10)).start();
    let first = session.say("Name three colours.").await.unwrap().outcome().await.unwrap();
    let second = session.say("And three animals.").await.unwrap().outcome().await.unwrap();
    assert_eq!(first.placed.group, second.placed.group);
    cluster.stop_worker(&first.placed.group).await;
    let third = session.say("And three rivers.").await.unwrap().outcome().await.unwrap();
    assert_ne!(third.placed.group, first.placed.group);
    assert!(!third.placed.resent, "the session was handed over: what is new is enough");
    let before = second.report.usage;
    let held = before.prompt_tokens + before.generated_tokens - 1;
    assert_eq!(third.report.usage.reused_tokens, held, "its rows came with it");
    let fourth = session.say("And three cities.").await.unwrap().outcome().await.unwrap();
    assert_eq!(fourth.placed.group, third.placed.group);
    assert!(fourth.report.usage.reused_tokens > third.report.usage.prompt_tokens);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_runs_when_its_group_drains_finishes_first() {
    let mut cluster = Cluster::start(1, |_| {}).await;
    let request = token_request("s", &words(5, 50), 60);
    let mut frames = cluster.client.generate(request, None).await.unwrap();
    frames.next().await.unwrap();
    let worker = cluster.workers.remove(0);
    let leaving = Tasks::new().spawn(worker.shutdown(Duration::from_secs(30)));
    let mut tokens = 0;
    while let Some(frame) = frames.next().await.unwrap() {
        if let hawser_client::Frame::Chunk(chunk) = frame {
            tokens += chunk.token_ids.len();
        }
    }
    assert_eq!(tokens, 60);
    assert!(leaving.await.unwrap(), "nothing was cut off");
    cluster.wait_for_groups(0).await;
    cluster.stop().await;
}

//! Turns that go on at another group after their own was lost in mid-stream.

use hawser_common::ErrorCode;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{fault, v1};
use hawser_router::RouterOptions;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tonic::Streaming;

use crate::cluster::{Cluster, Turn, delta, options, placed, request, rest, turn};
use crate::worker::{Script, Then};

const TOKENS: usize = 12;

fn script() -> Script {
    Script { chunks: TOKENS, lag: 3, ..Script::default() }
}

/// Reads so many tokens of a turn that hangs after them.
async fn read(stream: &mut Streaming<v1::GenerateResponse>, tokens: usize) -> Turn {
    let mut turn = Turn { group: placed(stream).await, ..Turn::default() };
    while turn.tokens.len() < tokens {
        match stream.message().await.unwrap().and_then(|response| response.frame) {
            Some(Frame::Chunk(chunk)) => {
                turn.tokens.extend(chunk.token_ids);
                turn.text.push_str(&chunk.text);
            }
            other => panic!("{other:?}"),
        }
    }
    turn
}

#[tokio::test]
async fn p3_the_session_goes_on_at_a_new_owner_that_is_recorded_before_its_first_token() {
    let cluster = Cluster::start(2, options()).await;
    for worker in &cluster.workers {
        worker.script(Script { breaks: Some((5, Then::Hang)), ..script() });
    }
    let mut stream = cluster.client.clone().generate(request("s")).await.unwrap().into_inner();
    let begun = read(&mut stream, 5).await;
    let dead = cluster.worker(&begun.group).clone();
    let other = cluster.workers.iter().find(|worker| worker.id() != begun.group).unwrap();
    other.script(script());
    dead.kill();
    dead.registration.stop().await;
    // The first token that the other group sends comes after its claim.
    let next = stream.message().await.unwrap().unwrap().frame;
    let Some(Frame::Chunk(chunk)) = next else { panic!("{next:?}") };
    assert_eq!(cluster.state().await.claims.values().next().unwrap().group.as_str(), other.id());
    let mut turn = begun.clone();
    turn.tokens.extend(chunk.token_ids);
    turn.text.push_str(&chunk.text);
    let whole = rest(&mut stream, turn).await.unwrap();
    whole.assert_whole(TOKENS);
    assert_eq!(whole.continued, [other.id()]);
    let again = turn_of(&cluster, "s").await;
    assert_eq!((again.group, again.number), (other.id(), 2), "the session is the same one");
    cluster.assert_idle().await;
}

async fn turn_of(cluster: &Cluster, session: &str) -> Turn {
    cluster.turn(session).await.unwrap()
}

#[tokio::test]
async fn wherever_it_breaks_and_however_no_token_or_character_is_lost_or_sent_twice() {
    let cluster = Cluster::start(3, options()).await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..120 {
        let after = rng.random_range(0..=TOKENS);
        let then = match rng.random_range(0..2) {
            0 => Then::Stop,
            _ => Then::Fail(ErrorCode::Unavailable),
        };
        let lag = rng.random_range(1..6);
        let single = rng.random_range(0..2) == 0;
        for worker in &cluster.workers {
            worker.script(Script { lag, breaks: Some((after, then)), ..script() });
        }
        let session = if single { String::new() } else { format!("s{case}") };
        let turn = cluster.turn(&session).await.unwrap_or_else(|error| panic!("case {case}: {error}"));
        turn.assert_whole(TOKENS);
        assert_eq!(turn.continued.len(), 1, "case {case}");
        if !single {
            assert_eq!(
                turn.continued,
                std::slice::from_ref(&turn.group),
                "its owner lives and goes on itself"
            );
        }
    }
    cluster.assert_idle().await;
    for worker in &cluster.workers {
        worker.until(|seen| seen.started == seen.ended).await;
    }
}

#[tokio::test]
async fn a_second_loss_ends_the_turn_with_an_error() {
    for (continuations, losses) in [(0, 1), (1, 2), (2, 3)] {
        let cluster = Cluster::start(1, RouterOptions { continuations, ..options() }).await;
        cluster.workers[0].script(Script { chunks: 4, then: Then::Stop, ..script() });
        let mut stream = cluster.client.clone().generate(request("s")).await.unwrap().into_inner();
        let begun = Turn { group: placed(&mut stream).await, ..Turn::default() };
        let error = rest(&mut stream, begun).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains("after 5 frames"), "what was delivered: {error}");
        assert_eq!(cluster.workers[0].seen.borrow().started, losses);
        cluster.assert_idle().await;
    }
}

#[tokio::test]
async fn what_must_not_go_on_elsewhere_ends_as_before() {
    let cluster = Cluster::start(2, options()).await;
    cluster.turn("s").await.unwrap();
    let breaks = Script { breaks: Some((2, Then::Stop)), ..script() };
    let refused = v1::GenerateRequest { no_continuation: true, ..request("t") };
    for (request, says) in [(delta("s"), "after 3 frames"), (refused, "after 3 frames")] {
        for worker in &cluster.workers {
            worker.script(breaks.clone());
        }
        let error = turn(&mut cluster.client.clone(), request).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains(says), "{error}");
    }
    // The worker's own decisions are passed on.
    for worker in &cluster.workers {
        worker.script(Script { breaks: Some((2, Then::Fail(ErrorCode::Internal))), ..script() });
    }
    assert_eq!(cluster.turn("u").await.unwrap_err().code, ErrorCode::Internal);
    for worker in &cluster.workers {
        assert_eq!(worker.seen.borrow().continued, 0);
    }
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_worker_that_begins_anew_is_not_taken_for_one_that_goes_on() {
    let cluster = Cluster::start(1, options()).await;
    cluster.workers[0].script(Script { breaks: Some((2, Then::Stop)), is_old: true, ..script() });
    let error = cluster.turn("s").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("cannot go on"), "{error}");
    cluster.assert_idle().await;
}

#[tokio::test]
async fn without_room_for_what_was_sent_a_turn_ends_where_its_group_is_lost() {
    let cluster = Cluster::start(1, RouterOptions { continuation_memory_mib: 0, ..options() }).await;
    cluster.workers[0].script(Script { breaks: Some((2, Then::Stop)), ..script() });
    let error = cluster.turn("s").await.unwrap_err();
    assert_eq!(fault(&hawser_proto::status(&error)).code, ErrorCode::Unavailable);
    assert_eq!(cluster.workers[0].seen.borrow().started, 1);
    cluster.assert_idle().await;
}

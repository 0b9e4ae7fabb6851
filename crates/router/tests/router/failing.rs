//! What clients see when a turn does not end well, and what stays counted.

use std::time::Duration;

use hawser_common::ErrorCode;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{Fault, fault, v1};
use hawser_router::{Quota, RouterOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tonic::Request;

use crate::cluster::{Cluster, LONG, options, placed, request};
use crate::worker::{Script, Then};

/// Runs a turn whose stream must fail, and gives the chunks that came before.
async fn failing_turn(cluster: &Cluster, session: &str, after: usize, then: impl FnOnce(&str)) -> Fault {
    let request = v1::GenerateRequest { no_continuation: true, ..request(session) };
    let mut stream = cluster.client.clone().generate(request).await.unwrap().into_inner();
    let group = placed(&mut stream).await;
    for _ in 0..after {
        let frame = stream.message().await.unwrap().unwrap().frame;
        assert!(matches!(frame, Some(Frame::Chunk(_))), "{frame:?}");
    }
    then(&group);
    match stream.message().await {
        Ok(other) => panic!("expected an error, got {other:?}"),
        Err(status) => fault(&status),
    }
}

#[tokio::test]
async fn a_worker_that_dies_in_a_turn_is_an_error_not_a_short_success() {
    let cluster = Cluster::start(2, options()).await;
    for worker in &cluster.workers {
        worker.script(Script { chunks: 5, then: Then::Hang, ..Script::default() });
    }
    let died = failing_turn(&cluster, "s", 5, |group| cluster.worker(group).kill()).await;
    assert_eq!(died.code, ErrorCode::Unavailable);
    assert!(died.message.contains("after 6 frames"), "{died}");
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_stream_that_ends_without_a_result_is_an_error() {
    let cluster = Cluster::start(1, options()).await;
    cluster.workers[0].script(Script { then: Then::Stop, ..Script::default() });
    let short = failing_turn(&cluster, "s", 3, |_| ()).await;
    assert_eq!(short.code, ErrorCode::Unavailable);
    for code in [ErrorCode::Internal, ErrorCode::Exhausted, ErrorCode::Unavailable] {
        cluster.workers[0].script(Script { then: Then::Fail(code), ..Script::default() });
        assert_eq!(failing_turn(&cluster, "s", 3, |_| ()).await.code, code);
    }
    cluster.assert_idle().await;
}

#[tokio::test]
async fn dropping_the_stream_reaches_the_worker() {
    let cluster = Cluster::start(1, options()).await;
    let worker = &cluster.workers[0];
    worker.script(Script { then: Then::Hang, ..Script::default() });
    let mut stream = cluster.client.clone().generate(request("s")).await.unwrap().into_inner();
    placed(&mut stream).await;
    assert_eq!(worker.seen.borrow().ended, 0);
    drop(stream);
    worker.until(|seen| seen.ended == 1).await;

    // The same before the worker has answered anything.
    worker.script(Script { stall: true, ..Script::default() });
    let mut client = cluster.client.clone();
    let asking = client.generate(request("s"));
    tokio::select! {
        answer = asking => panic!("a stalled worker answered {answer:?}"),
        _ = worker.until(|seen| seen.started == 2) => {}
    }
    worker.until(|seen| seen.ended == 2).await;
    cluster.assert_idle().await;
}

#[tokio::test]
async fn a_deadline_travels_and_ends_the_turn_at_both_ends() {
    let cluster = Cluster::start(1, options()).await;
    let worker = &cluster.workers[0];
    let given = Duration::from_millis(300);
    for script in
        [Script { then: Then::Hang, ..Script::default() }, Script { stall: true, ..Script::default() }]
    {
        let before = worker.seen.borrow().ended;
        worker.script(script);
        let mut request = Request::new(request("s"));
        // Set by hand: tonic's own client would also time the call itself and say CANCELLED.
        request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
        let error = match cluster.client.clone().generate(request).await {
            Err(status) => fault(&status),
            Ok(response) => {
                let mut stream = response.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(_)) => {}
                        Ok(None) => panic!("a short success"),
                        Err(status) => break fault(&status),
                    }
                }
            }
        };
        assert_eq!(error.code, ErrorCode::Deadline, "{error:?}");
        let seen = worker.until(|seen| seen.ended > before).await;
        assert!(seen.timeout.is_some_and(|left| left <= given), "{seen:?}");
    }
    cluster.assert_idle().await;
}

#[tokio::test]
async fn full_means_refused_with_a_hint_until_a_stream_ends() {
    let cluster = Cluster::start(1, RouterOptions { max_in_flight: 1, queue_wait_ms: 0, ..options() }).await;
    let worker = &cluster.workers[0];
    worker.script(Script { then: Then::Hang, ..Script::default() });
    let mut stream = cluster.client.clone().generate(request("a")).await.unwrap().into_inner();
    placed(&mut stream).await;
    let full = cluster.turn("b").await.unwrap_err();
    assert_eq!(full.code, ErrorCode::Exhausted);
    assert!(full.retry_after.is_some());
    drop(stream);
    cluster.assert_idle().await;
    worker.script(Script::default());
    cluster.turn("b").await.unwrap();
}

#[tokio::test]
async fn p18_counts_return_to_zero_after_aborts_at_every_point() {
    // Fewer places than calls, so that aborts meet calls that wait too.
    let few = RouterOptions { max_in_flight: 40, queue_wait_ms: 60_000, ..options() };
    let quota = Quota { max_queued: 1_000, ..Quota::default() };
    let cluster = Cluster::start(3, RouterOptions { quota, ..few }).await;
    let seed: u64 = 20_260_916;
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for worker in &cluster.workers {
        worker.script(Script { chunks: 20, ..Script::default() });
    }
    let turns: Vec<_> = (0..300)
        .map(|i| {
            let mut client = cluster.client.clone();
            // A third ends well, a third is dropped while asking, a third after some frames.
            let (kind, frames, polls) =
                (rng.random_range(0..3), rng.random_range(0..22), rng.random_range(0..50));
            async move {
                let asking = client.generate(request(&format!("s{}", i % 50)));
                if kind == 0 {
                    let patience = async {
                        for _ in 0..polls {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! { _ = asking => {}, () = patience => {} }
                    return;
                }
                let mut stream = asking.await.unwrap().into_inner();
                let limit = if kind == 1 { frames } else { usize::MAX };
                for _ in 0..limit {
                    match stream.message().await.unwrap() {
                        Some(v1::GenerateResponse { .. }) => {}
                        None => break,
                    }
                }
            }
        })
        .collect();
    tokio::time::timeout(LONG * 3, futures_util::future::join_all(turns)).await.unwrap();
    cluster.assert_idle().await;
    for worker in &cluster.workers {
        worker.until(|seen| seen.started == seen.ended).await;
    }
}

//! Groups of several ranks: turns, prunes and sharing as with one, and failures that end every request and leave nothing
//! behind. That ranks compute what one machine computes is shown on exact checkpoints, in the parity tests.

use std::time::Duration;

use hawser_client::{Frame, wire};
use hawser_common::clock::Clock;
use hawser_common::{Coded, ErrorCode};
use hawser_tests::demo_model;

use crate::cluster::{Cluster, run, token_request, words};
use crate::process::{Server, connect};

/// Positions decide here, so that what is counted does not depend on rounding.
async fn counts(tp: usize) -> Vec<[u32; 5]> {
    let cluster = Cluster::start(1, |options| options.tp = tp).await;
    let mut all = Vec::new();
    for policy in ["streaming", "role-prior", "random", "snapkv", "h2o", "intent-memory"] {
        let keep = wire::Retention {
            policy: policy.to_owned(),
            budget_tokens: 160,
            trigger_tokens: Some(0),
            ..Default::default()
        };
        let mut log = Vec::new();
        for seed in [500, 501, 502] {
            log.extend(words(seed, 120));
            let request =
                wire::GenerateRequest { retention: Some(keep.clone()), ..token_request(policy, &log, 8) };
            // Every prune compares the tables of the ranks: if one had another set, the group would fail here.
            let answer = run(&cluster.client, request).await.unwrap();
            log.extend_from_slice(&answer.tokens);
            let usage = answer.usage();
            all.push([
                usage.prefilled_tokens,
                usage.reused_tokens,
                usage.evicted_tokens,
                usage.freed_slots,
                usage.peak_live_tokens,
            ]);
        }
        cluster.client.close_session(policy).await.unwrap();
    }
    cluster.wait_until_empty().await;
    cluster.stop().await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn r4_ranks_prune_together_and_count_as_one() {
    let alone = counts(1).await;
    assert!(alone.iter().any(|[_, _, evicted, ..]| *evicted > 0));
    for tp in [2, 3] {
        assert_eq!(counts(tp).await, alone, "tp = {tp}");
    }
}

/// The address of a listener that is closed again: free a moment ago.
fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn rank_arguments(rank: &'static str, meeting: &str) -> Vec<String> {
    ["--rank", rank, "--world", "2", "--rendezvous", meeting].map(str::to_owned).to_vec()
}

fn follower(meeting: &str) -> Server {
    let model = demo_model();
    let mut arguments = vec!["worker".to_owned(), "--threads".to_owned(), "1".to_owned()];
    arguments.extend(["--model".to_owned(), model.to_str().unwrap().to_owned()]);
    arguments.extend(rank_arguments("1", meeting));
    Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Tries until a request is served: a group that comes back takes a moment.
async fn served(client: &hawser_client::Client, limit: Duration) -> Vec<u32> {
    let clock = Clock::system();
    let until = clock.now().after(limit);
    loop {
        match run(client, token_request("", &words(600, 40), 4)).await {
            Ok(answer) => return answer.tokens,
            Err(error) => assert!(clock.now() < until, "not served again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_p22_a_rank_that_dies_or_hangs_ends_every_request_and_the_next_one_is_served() {
    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let meeting = free_address();
    let arguments = rank_arguments("0", &meeting);
    let leader = Server::worker(&uri, "g", &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut other = follower(&meeting);
    let expected = served(&client, Duration::from_secs(60)).await;
    for hangs in [false, true] {
        let request =
            wire::GenerateRequest { no_continuation: true, ..token_request("", &words(601, 40), 3_000) };
        let mut frames = client.generate(request, Some(Duration::from_secs(60))).await.unwrap();
        let mut tokens = 0;
        while tokens < 5 {
            if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
                tokens += chunk.token_ids.len();
            }
        }
        if hangs {
            other.freeze();
        } else {
            other.kill().await;
            other = follower(&meeting);
        }
        let error = loop {
            match frames.next().await {
                Ok(Some(Frame::Finished(end))) => panic!("a turn without all ranks ended well: {end:?}"),
                Ok(Some(_)) => {}
                Ok(None) => panic!("a turn without all ranks ended without an error"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
        if hangs {
            other.kill().await;
            other = follower(&meeting);
        }
        assert_eq!(served(&client, Duration::from_secs(60)).await, expected, "a new epoch serves the same");
    }
    drop(client);
    leader.stop().await;
    drop(other);
    router.stop().await;
}

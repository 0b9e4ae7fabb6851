//! Retention over the wire: sessions inside a budget, shared prefixes, demotion, pins and releases.

use hawser_client::wire;
use hawser_common::{Coded, ErrorCode};

use crate::cluster::{Answer, Cluster, run, token_request, words};

fn retention(policy: &str, budget_tokens: u32) -> wire::Retention {
    wire::Retention {
        policy: policy.to_owned(),
        budget_tokens,
        trigger_tokens: Some(0),
        revive: Some(false),
        ..Default::default()
    }
}

/// One turn of a session: all of its tokens so far, and what is new.
async fn turn(
    cluster: &Cluster,
    session: &str,
    log: &mut Vec<u32>,
    new: &[u32],
    keep: &wire::Retention,
) -> Answer {
    log.extend_from_slice(new);
    let request = wire::GenerateRequest { retention: Some(keep.clone()), ..token_request(session, log, 8) };
    let answer = run(&cluster.client, request).await.unwrap();
    log.extend_from_slice(&answer.tokens);
    answer
}

async fn turns(cluster: &Cluster, session: &str, keep: &wire::Retention, count: u32) -> Vec<Answer> {
    let mut log = Vec::new();
    let mut answers = Vec::new();
    for index in 0..count {
        answers.push(turn(cluster, session, &mut log, &words(100 + index, 120), keep).await);
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_inside_its_budget_and_reuses_what_it_had() {
    let cluster = Cluster::start(1, |_| {}).await;
    for policy in ["streaming", "snapkv", "h2o", "random", "role-prior", "intent-memory", "answer-rows"] {
        let answers = turns(&cluster, policy, &retention(policy, 200), 5).await;
        let mut live = 0;
        for (index, answer) in answers.iter().enumerate() {
            let usage = answer.usage();
            let new = if index == 0 { 120 } else { 121 };
            assert_eq!(usage.prefilled_tokens, new, "{policy}: only what is new is prefilled");
            assert_eq!(usage.prompt_tokens, usage.reused_tokens + new);
            assert!(usage.peak_live_tokens <= 200 + 8 + new, "{policy}: {usage:?}");
            assert_eq!(usage.freed_slots, usage.evicted_tokens, "{policy}: nobody shares these rows");
            let before = u32::try_from(live).unwrap() + new;
            assert_eq!(usage.evicted_tokens, before.saturating_sub(200), "{policy}, turn {index}");
            assert_eq!(usage.dead_tokens, usage.reused_tokens - u32::try_from(live).unwrap());
            live = (before - usage.evicted_tokens + 7) as usize;
            assert!(usage.kv_rows_read <= usage.kv_rows_full);
        }
        let info = cluster.client.describe_session(policy).await.unwrap();
        assert_eq!((info.live_tokens, info.tokens), (207, 640));
        assert_eq!(info.retention.unwrap().policy, policy);
        cluster.client.close_session(policy).await.unwrap();
    }
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_never_reached_changes_nothing() {
    let cluster = Cluster::start(1, |options| options.share_prefixes = false).await;
    let kept = turns(&cluster, "kept", &retention("full", 0), 3).await;
    for policy in ["h2o", "intent-memory", "snapkv"] {
        let budgeted = turns(&cluster, policy, &retention(policy, 4_000), 3).await;
        for (kept, budgeted) in kept.iter().zip(&budgeted) {
            assert_eq!(kept.tokens, budgeted.tokens, "{policy}");
            assert_eq!(budgeted.usage().evicted_tokens, 0);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_a_prune_of_one_session_is_not_seen_by_another_with_the_same_prompt() {
    let alone = Cluster::start(1, |options| options.share_prefixes = false).await;
    let prompt = words(200, 300);
    let cold = run(&alone.client, token_request("", &prompt, 12)).await.unwrap();
    alone.stop().await;
    let cluster = Cluster::start(1, |_| {}).await;
    let mut log = Vec::new();
    let pruned = turn(&cluster, "pruned", &mut log, &prompt, &retention("streaming", 100)).await;
    assert!(pruned.usage().evicted_tokens > 150, "{:?}", pruned.usage());
    let other = run(&cluster.client, token_request("other", &prompt, 12)).await.unwrap();
    assert_eq!(other.tokens, cold.tokens, "exact rows only");
    // Both hold the prompt's rows now: one that lets go gives no memory back.
    let third = run(&cluster.client, token_request("third", &prompt, 12)).await.unwrap();
    assert_eq!(third.usage().shared_tokens, 299);
    let request = wire::GenerateRequest {
        retention: Some(retention("streaming", 100)),
        ..token_request("third", &[prompt.clone(), third.tokens.clone(), words(201, 9)].concat(), 4)
    };
    let usage = run(&cluster.client, request).await.unwrap().usage();
    assert!(usage.evicted_tokens > 150 && usage.freed_slots < 30, "{usage:?}");
    let again = run(&cluster.client, token_request("again", &prompt, 12)).await.unwrap();
    assert_eq!(again.tokens, cold.tokens);
    cluster.stop().await;
}

fn reviving(policy: &str, budget_tokens: u32) -> wire::Retention {
    wire::Retention { revive: Some(true), revive_margin: Some(0.0), ..retention(policy, budget_tokens) }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_from_the_archive_is_what_went_also_after_a_demotion() {
    // The last turn asks what the first one asked: the model looks for it there.
    let asked = [100, 101, 102, 103, 100].map(|seed| words(seed, 120));
    for policy in ["role-prior", "snapkv", "random"] {
        let keep = reviving(policy, 150);
        let roomy = Cluster::start(1, |options| options.archive_slots = 1_000).await;
        let mut log = Vec::new();
        let mut expected = Vec::new();
        for new in &asked {
            expected.push(turn(&roomy, "s", &mut log, new, &keep).await);
        }
        roomy.stop().await;
        let revived: u32 = expected.iter().map(|answer| answer.usage().revived_tokens).sum();
        assert!(revived > 0 || policy != "random", "nothing came back, although anything may go");
        for answer in &expected {
            let usage = answer.usage();
            assert!(usage.revived_tokens <= 150 / 8 && usage.peak_live_tokens <= 150 + 8 + 121, "{usage:?}");
            assert_eq!(usage.revived_tokens, usage.copied_rows, "nobody shares these rows");
        }
        let tight = |options: &mut hawser_worker::WorkerOptions| {
            (options.kv_slots, options.archive_slots) = (900, 1_000);
        };
        let cluster = Cluster::start(1, tight).await;
        let mut log = Vec::new();
        for ((index, expected), new) in (0..).zip(&expected).zip(&asked) {
            let answer = turn(&cluster, "s", &mut log, new, &keep).await;
            assert_eq!(answer.tokens, expected.tokens, "{policy}, turn {index}");
            assert_eq!(
                answer.usage().revived_tokens,
                expected.usage().revived_tokens,
                "{policy}, turn {index}"
            );
            if index > 0 {
                assert!(answer.usage().reused_tokens < 30, "its rows were given up: {:?}", answer.usage());
            }
            run(&cluster.client, token_request("", &words(300 + index, 880), 4)).await.unwrap();
        }
        cluster.stop().await;
    }
}

/// What comes back by being computed again: with an archive too small for rows, on one rank and on two, and also where
/// the session loses its rows.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_nowhere_is_computed_again_on_any_number_of_ranks() {
    let asked = [100, 101, 102, 103, 100, 104, 101].map(|seed| words(seed, 120));
    let keep = wire::Retention { refill_tokens: Some(150), ..reviving("random", 150) };
    let mut expected: Vec<Answer> = Vec::new();
    for (ranks, slots) in [(1, 4_000), (2, 4_000), (2, 760)] {
        let cluster = Cluster::start(1, |options| {
            (options.tp, options.kv_slots, options.archive_slots) = (ranks, slots, 30);
        })
        .await;
        let mut log = Vec::new();
        let mut answers = Vec::new();
        for (index, new) in (0..).zip(&asked) {
            answers.push(turn(&cluster, "s", &mut log, new, &keep).await);
            if slots < 4_000 {
                // Every idle session is demoted.
                run(&cluster.client, token_request("", &words(300 + index, slots - 20), 4)).await.unwrap();
            }
        }
        let (mut refilled, mut rows) = (0, 0);
        for answer in &answers {
            let usage = answer.usage();
            assert!(usage.revived_tokens <= 150 / 8 && usage.refill_rows <= 150, "{usage:?}");
            assert!(usage.refilled_tokens + usage.copied_rows <= usage.revived_tokens, "{usage:?}");
            (refilled, rows) = (refilled + usage.refilled_tokens, rows + usage.refill_rows);
        }
        assert!(refilled > 0 && rows >= refilled, "{refilled} of {rows}");
        if expected.is_empty() {
            expected = answers;
            cluster.stop().await;
            continue;
        }
        for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
            assert_eq!(answer.tokens, expected.tokens, "{ranks} ranks, {slots} slots, turn {index}");
            let (here, there) = (answer.usage(), expected.usage());
            assert_eq!(
                (here.revived_tokens, here.refilled_tokens, here.refill_rows),
                (there.revived_tokens, there.refilled_tokens, there.refill_rows),
                "{ranks} ranks, {slots} slots, turn {index}"
            );
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_session_still_has_comes_back_without_a_copy() {
    let cluster = Cluster::start(1, |_| {}).await;
    // What is asked last was said first.
    let prompt = [words(210, 100), words(212, 150), words(210, 50)].concat();
    run(&cluster.client, token_request("holder", &prompt, 4)).await.unwrap();
    let mut log = Vec::new();
    let keep = reviving("streaming", 200);
    let usage = turn(&cluster, "pruned", &mut log, &prompt, &keep).await.usage();
    assert_eq!(usage.shared_tokens, 299);
    assert!(usage.revived_tokens > 0 && usage.copied_rows == 0, "{usage:?}");
    cluster.client.close_session("holder").await.unwrap();
    let again = turn(&cluster, "pruned", &mut log, &words(211, 50), &keep).await;
    assert_eq!(again.usage().prefilled_tokens, 51);
    cluster.client.close_session("pruned").await.unwrap();
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_demoted_session_goes_on_as_if_it_had_kept_its_rows() {
    for policy in ["intent-memory", "h2o", "answer-rows"] {
        let keep = retention(policy, 150);
        let roomy = Cluster::start(1, |_| {}).await;
        let expected = turns(&roomy, "s", &keep, 4).await;
        roomy.stop().await;
        let cluster = Cluster::start(1, |options| options.kv_slots = 700).await;
        let mut log = Vec::new();
        for (index, expected) in (0..).zip(&expected) {
            let answer = turn(&cluster, "s", &mut log, &words(100 + index, 120), &keep).await;
            assert_eq!(answer.tokens, expected.tokens, "{policy}, turn {index}");
            let (here, there) = (answer.usage(), expected.usage());
            assert_eq!(here.evicted_tokens, there.evicted_tokens, "{policy}, turn {index}");
            if index > 0 {
                assert!(here.reused_tokens < 30, "its rows were given up: {here:?}");
            }
            // Needs the whole pool, so that every idle session is demoted.
            run(&cluster.client, token_request("", &words(300 + index, 680), 4)).await.unwrap();
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_stay_releases_go_and_what_is_outside_is_refused() {
    let cluster = Cluster::start(1, |_| {}).await;
    let prompt = words(400, 300);
    let with = |session: &str, intent: wire::Intent| wire::GenerateRequest {
        intent: Some(intent),
        retention: Some(retention("streaming", 200)),
        ..token_request(session, &prompt, 4)
    };
    let span = |start, end| vec![wire::Span { start, end }];
    let released = wire::Intent { release_tokens: span(100, 180), ..Default::default() };
    let usage = run(&cluster.client, with("released", released)).await.unwrap().usage();
    assert_eq!(usage.evicted_tokens, 100, "80 released, 20 more to the budget");
    let pinned = wire::Intent { pin_tokens: span(10, 60), ..Default::default() };
    run(&cluster.client, with("pinned", pinned)).await.unwrap();
    let tokens = cluster.client.inspect_session("pinned").await.unwrap().tokens;
    let is_dead = |at: usize| tokens[at].state() == wire::TokenState::Dead;
    assert!(
        (10..60).all(|at| !is_dead(at)) && is_dead(9) && is_dead(60),
        "what is pinned stays, its neighbours go"
    );
    let meant = wire::Intent { text: "Which codes were given at the desk?".to_owned(), ..Default::default() };
    let hinted = wire::GenerateRequest {
        retention: Some(retention("intent-memory", 200)),
        ..with("hinted", meant.clone())
    };
    let usage = run(&cluster.client, hinted).await.unwrap().usage();
    assert_eq!((usage.prompt_tokens, usage.evicted_tokens), (300, 100), "a hint leaves no tokens behind");
    let long = wire::Intent { text: "code ".repeat(200), ..meant };
    let error = run(&cluster.client, with("", long)).await.unwrap_err();
    assert!(error.to_string().contains("at most 128 are run"), "{error}");
    let outside = wire::Intent { pin_tokens: span(10, 301), ..Default::default() };
    let error = run(&cluster.client, with("", outside)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Invalid);
    assert!(error.to_string().contains("token 301 of 300"), "{error}");
    for session in ["released", "pinned", "hinted"] {
        cluster.client.close_session(session).await.unwrap();
    }
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

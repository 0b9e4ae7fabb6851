//! Turns over a whole cluster: reuse, batching, cancellation, limits.

use futures_util::future::join_all;
use hawser_client::{Frame, Sampling, wire};
use hawser_common::Coded;
use hawser_common::ErrorCode;

use crate::cluster::{Cluster, chat_request, run, token_request, words};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_on_its_group_and_later_turns_prefill_only_what_is_new() {
    // Each session's rows are its own, so that all of them are free once it is closed.
    let cluster = Cluster::start(2, |options| options.share_prefixes = false).await;
    let mut session = cluster.client.session().sampling(Sampling::greedy().max_tokens(12)).start();
    let mut held = 0;
    let mut groups = Vec::new();
    for turn in 1..=5 {
        let say = format!("Tell me fact number {turn} about rivers.");
        let outcome = session.say(say).await.unwrap().outcome().await.unwrap();
        let usage = outcome.report.usage;
        assert_eq!(usage.reused_tokens, held, "turn {turn} reuses all rows that there are");
        assert_eq!(usage.prompt_tokens, usage.reused_tokens + usage.prefilled_tokens);
        if turn > 1 {
            assert!(usage.prefilled_tokens < 30, "only the new message is prefilled, not {usage:?}");
        }
        // The last generated token's row is computed with the next turn.
        held = usage.prompt_tokens + usage.generated_tokens - 1;
        assert_eq!(outcome.report.turn, turn);
        groups.push(outcome.placed.group);
    }
    assert!(groups.iter().all(|group| group == &groups[0]), "{groups:?}");
    let listed = cluster.client.list_sessions(0).await.unwrap();
    assert_eq!(listed.sessions.len(), 1);
    assert_eq!(listed.sessions[0].live_tokens, u64::from(held));
    assert_eq!(session.close().await.unwrap(), u64::from(held));
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_the_same_prompt_again_and_its_strict_prefix_give_the_cold_output() {
    let cluster = Cluster::start(1, |options| options.share_prefixes = false).await;
    let prompt = words(1, 90);
    let cold_whole = run(&cluster.client, token_request("", &prompt, 16)).await.unwrap();
    let cold_prefix = run(&cluster.client, token_request("", &prompt[..50], 16)).await.unwrap();
    for (ids, cold, reused) in [
        (&prompt[..], &cold_whole, 0),
        (&prompt[..], &cold_whole, 89),
        (&prompt[..50], &cold_prefix, 49),
        (&prompt[..], &cold_whole, 50),
    ] {
        let warm = run(&cluster.client, token_request("e1", ids, 16)).await.unwrap();
        assert_eq!(warm.tokens, cold.tokens);
        assert_eq!(warm.usage().reused_tokens, reused);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_reuse_ends_at_the_first_difference() {
    let cluster = Cluster::start(1, |options| options.share_prefixes = false).await;
    let (p, a, b) = (words(2, 60), words(3, 20), words(4, 20));
    let (pa, pb) = ([p.clone(), a].concat(), [p, b].concat());
    let cold_a = run(&cluster.client, token_request("", &pa, 12)).await.unwrap();
    let cold_b = run(&cluster.client, token_request("", &pb, 12)).await.unwrap();
    for (ids, cold, reused) in [(&pa, &cold_a, 0), (&pb, &cold_b, 60), (&pa, &cold_a, 60)] {
        let warm = run(&cluster.client, token_request("e2", ids, 12)).await.unwrap();
        assert_eq!(warm.tokens, cold.tokens);
        assert_eq!(warm.usage().reused_tokens, reused);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e12_e24_e25_a_turn_is_the_same_alone_and_among_others() {
    let cluster = Cluster::start(1, |options| options.step_tokens = 48).await;
    let prompts: Vec<Vec<u32>> =
        (0..8).map(|index| words(10 + index % 7, 30 + 17 * index as usize)).collect();
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.push(run(&cluster.client, token_request("", prompt, 24)).await.unwrap());
    }
    for count in [2, 3, 8] {
        let together =
            prompts[..count].iter().map(|prompt| run(&cluster.client, token_request("", prompt, 24)));
        for (index, answer) in join_all(together).await.into_iter().enumerate() {
            assert_eq!(answer.unwrap().tokens, alone[index].tokens, "prompt {index} among {count}");
        }
    }
    let same = (0..2).map(|_| run(&cluster.client, token_request("", &prompts[0], 24)));
    for answer in join_all(same).await {
        assert_eq!(answer.unwrap().tokens, alone[0].tokens, "two equal sequences in one batch");
    }
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_e7_a_dropped_stream_gives_everything_back_and_leaves_the_last_committed_turn() {
    let cluster = Cluster::start(1, |options| options.step_tokens = 32).await;
    let history = words(20, 64);
    let first = run(&cluster.client, token_request("s", &history, 8)).await.unwrap();
    let next = [history, first.tokens.clone(), words(21, 300)].concat();
    let reference = run(&cluster.client, token_request("", &next, 8)).await.unwrap();
    // 0 tokens: dropped while queued or in prefill; then in decode, far from the end.
    for read in [0, 1, 5, 17] {
        let mut frames = cluster.client.generate(token_request("s", &next, 200), None).await.unwrap();
        let mut tokens = 0;
        while tokens < read {
            if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
                tokens += chunk.token_ids.len();
            }
        }
        drop(frames);
        let other = run(&cluster.client, token_request("", &words(22, 40), 4)).await.unwrap();
        assert_eq!(other.tokens.len(), 4, "the next request works");
        let info = cluster.client.describe_session("s").await.unwrap();
        assert_eq!(info.turns, 1, "after {read} tokens: the aborted turn was not committed");
    }
    let retried = run(&cluster.client, token_request("s", &next, 8)).await.unwrap();
    assert_eq!(retried.tokens, reference.tokens);
    assert_eq!(retried.end.turn, 2);
    cluster.client.close_session("s").await.unwrap();
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_dropping_a_queued_turn_leaves_the_running_one_alone() {
    let cluster = Cluster::start(1, |options| options.max_running = 1).await;
    let prompt = words(30, 40);
    let alone = run(&cluster.client, token_request("", &prompt, 32)).await.unwrap();
    let mut a = cluster.client.generate(token_request("", &prompt, 32), None).await.unwrap();
    let mut tokens = Vec::new();
    let mut queued = None;
    while let Some(frame) = a.next().await.unwrap() {
        if let Frame::Chunk(chunk) = frame {
            tokens.extend(chunk.token_ids);
            queued = match queued.take() {
                None if tokens.len() < 8 => {
                    Some(cluster.client.generate(token_request("", &words(31, 50), 8), None).await.unwrap())
                }
                _ => None,
            };
        }
    }
    assert_eq!(tokens, alone.tokens);
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_a_prompt_too_long_is_refused_with_both_numbers_and_the_context_ends_with_length() {
    let cluster = Cluster::start(1, |options| options.context_tokens = 100).await;
    let refused = run(&cluster.client, token_request("", &words(40, 100), 1)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Invalid);
    let text = refused.to_string();
    assert_eq!(text.matches("100").count(), 2, "both numbers are named: {text}");
    let to_the_end = run(&cluster.client, token_request("", &words(40, 90), 11)).await.unwrap();
    assert_eq!(to_the_end.end.reason(), wire::FinishReason::Length);
    assert_eq!(to_the_end.tokens.len(), 10, "90 + 10 = 100");
    let asked = run(&cluster.client, token_request("", &words(40, 90), 7)).await.unwrap();
    assert_eq!((asked.end.reason(), asked.tokens.len()), (wire::FinishReason::Length, 7));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e16_larger_than_the_pool_is_refused_at_once_and_a_burst_queues_in_bounds() {
    let small = |options: &mut hawser_worker::WorkerOptions| {
        (options.kv_slots, options.max_waiting, options.max_running) = (257, 10, 4);
    };
    let cluster = Cluster::start(1, small).await;
    let refused = run(&cluster.client, token_request("", &words(50, 200), 100)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Invalid, "{refused}");
    assert!(refused.to_string().contains("300") && refused.to_string().contains("256"), "{refused}");
    let burst = (0..100).map(|seed| run(&cluster.client, token_request("", &words(60 + seed, 30), 4)));
    let (mut served, mut refused) = (0, 0);
    for answer in join_all(burst).await {
        match answer {
            Ok(answer) => {
                assert_eq!(answer.tokens.len(), 4);
                served += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::Exhausted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(served >= 10, "as many as may wait are served; served {served}, refused {refused}");
    assert_eq!(run(&cluster.client, token_request("", &words(51, 30), 4)).await.unwrap().tokens.len(), 4);
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e19_e20_stop_strings_and_whole_characters_over_the_wire() {
    let cluster = Cluster::start(1, |_| {}).await;
    let ask = |stop: &[&str]| {
        let mut request =
            chat_request("", &[(wire::Role::User, "Count from one to ten in words, with commas.")], 40);
        let sampling = request.sampling.as_mut().unwrap();
        sampling.stop = stop.iter().map(|&s| s.to_owned()).collect();
        request
    };
    let whole = run(&cluster.client, ask(&[])).await.unwrap();
    assert!(whole.text.len() > 12, "{whole:?}");
    // A stop string taken from the middle of the answer, so that it must be met wherever tokens end.
    let middle: String = whole.text.chars().skip(5).take(7).collect();
    let stopped = run(&cluster.client, ask(&[&middle, "never said"])).await.unwrap();
    assert_eq!(stopped.end.reason(), wire::FinishReason::StopString);
    assert_eq!(stopped.end.stop, middle);
    let before = whole.text.split(&middle).next().unwrap();
    assert_eq!(stopped.text, before, "nothing of the stop string is emitted");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_reproduces_a_sampled_turn_and_a_drawn_one_is_returned() {
    let cluster = Cluster::start(1, |_| {}).await;
    let sampled = |seed: Option<u64>| {
        let mut request = chat_request("", &[(wire::Role::User, "Tell me a story.")], 24);
        let sampling = Sampling::new().temperature(1.2).top_p(0.95).max_tokens(24);
        request.sampling = Some(match seed {
            Some(seed) => sampling.seed(seed).to_wire(),
            None => sampling.to_wire(),
        });
        request
    };
    let drawn = run(&cluster.client, sampled(None)).await.unwrap();
    let again = run(&cluster.client, sampled(Some(drawn.end.seed))).await.unwrap();
    assert_eq!(again.tokens, drawn.tokens);
    let other = run(&cluster.client, sampled(Some(drawn.end.seed ^ 1))).await.unwrap();
    assert_ne!(other.tokens, drawn.tokens);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_shares_the_rows_and_goes_its_own_way() {
    let cluster = Cluster::start(2, |options| options.share_prefixes = false).await;
    let history = words(70, 100);
    let first = run(&cluster.client, token_request("trunk", &history, 8)).await.unwrap();
    let fork = cluster.client.fork_session("trunk", "branch").await.unwrap();
    assert_eq!((fork.turns, fork.live_tokens), (1, 107));
    let used: u64 = cluster.workers.iter().map(|w| w.capacity().slots_total - w.capacity().slots_free).sum();
    assert_eq!(used, 107, "both hold the same rows");
    for (session, seed) in [("branch", 71), ("trunk", 72), ("branch", 73)] {
        let next = [history.clone(), first.tokens.clone(), words(seed, 12)].concat();
        let cold = run(&cluster.client, token_request("", &next, 8)).await.unwrap();
        let warm = run(&cluster.client, token_request(session, &next, 8)).await.unwrap();
        assert_eq!(warm.tokens, cold.tokens);
        assert_eq!(warm.usage().reused_tokens, if seed == 73 { 108 } else { 107 });
    }
    let taken = cluster.client.fork_session("trunk", "branch").await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::Invalid, "{taken}");
    cluster.client.close_session("trunk").await.unwrap();
    cluster.client.close_session("branch").await.unwrap();
    cluster.wait_until_empty().await;
    cluster.stop().await;
}

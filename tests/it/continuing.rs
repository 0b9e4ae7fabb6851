//! A group is killed in mid-stream and another one goes on: the client sees one unbroken answer.

use std::time::Duration;

use hawser_client::{Client, Frame, wire};

use crate::cluster::{Answer, chat_request, run, token_request, words};
use crate::process::{Server, connect};

const TOKENS: u32 = 80;
/// Short, so that the killed group's claim ends soon.
const LEASE: [&str; 2] = ["--set", "worker.lease_ttl_ms=3000"];

/// Runs a turn, and calls `kill` once five tokens are there.
async fn disturbed(client: &Client, request: wire::GenerateRequest, kill: impl AsyncFnOnce(&str)) -> Answer {
    let mut frames = client.generate(request, Some(Duration::from_secs(90))).await.unwrap();
    let (mut group, mut text, mut tokens, mut kill) = (String::new(), String::new(), Vec::new(), Some(kill));
    while let Some(frame) = frames.next().await.unwrap() {
        match frame {
            Frame::Placed(placed) => group = placed.group,
            Frame::Chunk(chunk) => {
                text.push_str(&chunk.text);
                tokens.extend(chunk.token_ids);
            }
            Frame::Finished(end) => return Answer { group, text, tokens, end },
        }
        if tokens.len() >= 5
            && let Some(kill) = kill.take()
        {
            kill(&group).await;
        }
    }
    unreachable!("the SDK ends a stream with `Finished` or an error")
}

/// Two groups, one of which is killed while it answers; the answer must be that of a run that nothing disturbed.
async fn check(session: &str, request: impl Fn(&str) -> wire::GenerateRequest) {
    let (router, uri) = Server::router(&[]).await;
    let client = connect(&uri).await;
    let mut workers = Vec::new();
    for group in ["a", "b"] {
        workers.push((group, Some(Server::worker(&uri, group, &LEASE).await)));
    }
    let expected = run(&client, request("")).await.unwrap();
    let answer = disturbed(&client, request(session), async |group| {
        let (_, worker) = workers.iter_mut().find(|(name, _)| *name == group).unwrap();
        worker.take().unwrap().kill().await;
    })
    .await;
    let other = workers.iter().find(|(_, worker)| worker.is_some()).unwrap().0;
    let went: Vec<_> = answer.end.continued.iter().map(|placed| placed.group.as_str()).collect();
    assert_eq!(went, [other], "it went on once, at the other group");
    assert_ne!(answer.group, other);
    assert_eq!(answer.tokens, expected.tokens, "each token once and in order");
    assert_eq!(answer.text, expected.text);
    assert_eq!((answer.end.reason, &answer.end.stop), (expected.end.reason, &expected.end.stop));
    let (usage, alone) = (answer.usage(), expected.usage());
    assert_eq!(usage.generated_tokens, alone.generated_tokens);
    assert_eq!(usage.prompt_tokens, alone.prompt_tokens);
    if !session.is_empty() {
        let described = client.describe_session(session).await.unwrap();
        assert_eq!((described.group.as_str(), described.turns), (other, 1), "the session is the same one");
        // All that was said is there, however it came about.
        let tokens = u64::from(usage.prompt_tokens + usage.generated_tokens);
        assert_eq!(described.tokens, tokens);
    }
    drop(client);
    for (_, worker) in workers {
        if let Some(worker) = worker {
            worker.stop().await;
        }
    }
    router.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_p15_a_killed_group_leaves_one_unbroken_greedy_answer() {
    check("s", |session| token_request(session, &words(77, 60), TOKENS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_seeded_answer_with_penalties_goes_on_with_the_same_draws() {
    let sampling = wire::Sampling {
        temperature: Some(0.8),
        seed: Some(11),
        frequency_penalty: Some(0.3),
        repetition_penalty: Some(1.1),
        max_tokens: Some(TOKENS),
        stop: vec!["no such text".to_owned()],
        ignore_eos: true,
        ..Default::default()
    };
    let messages = [(wire::Role::System, "You tell stories."), (wire::Role::User, "Tell one of a river.")];
    check("", |session| wire::GenerateRequest {
        sampling: Some(sampling.clone()),
        ..chat_request(session, &messages, TOKENS)
    })
    .await;
}

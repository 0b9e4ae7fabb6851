//! What is said of a session's tokens, against what its turns reported.

use hawser_client::{Client, Frame, wire};
use hawser_common::{Coded, ErrorCode};
use wire::TokenState::{Dead, Live, Pending, Protected, Shared, Sink};
use wire::{Origin, TokenState};

use crate::cluster::{Answer, Cluster, chat_request, run, token_request, words};
use crate::process;

const BUDGET: u32 = 64;
const SINKS: u32 = 4;

/// A request of a session that is pruned to its budget by every turn.
fn pruned(policy: &str, request: wire::GenerateRequest) -> wire::GenerateRequest {
    let retention = wire::Retention {
        policy: policy.to_owned(),
        revive: Some(false),
        budget_tokens: BUDGET,
        trigger_tokens: Some(0),
        sink_tokens: Some(SINKS),
        ..Default::default()
    };
    wire::GenerateRequest { retention: Some(retention), ..request }
}

fn states(inspected: &wire::InspectSessionResponse) -> Vec<TokenState> {
    inspected.tokens.iter().map(wire::InspectedToken::state).collect()
}

fn count(inspected: &wire::InspectSessionResponse, state: TokenState) -> usize {
    states(inspected).iter().filter(|found| **found == state).count()
}

/// Inspects a session after its turns, none of which was taken back, and compares all that both sides count.
async fn check(client: &Client, session: &str, turns: &[Answer]) -> wire::InspectSessionResponse {
    let inspected = client.inspect_session(session).await.unwrap();
    let described = client.describe_session(session).await.unwrap();
    let info = inspected.session.clone().unwrap();
    let (idle_ms, busy) = (described.idle_ms, false);
    assert_eq!(wire::SessionInfo { idle_ms, busy, ..info.clone() }, described);
    let lens: Vec<usize> = turns
        .iter()
        .map(|turn| (turn.usage().prompt_tokens + turn.usage().generated_tokens) as usize)
        .collect();
    assert_eq!((info.turns as usize, inspected.tokens.len()), (turns.len(), *lens.last().unwrap()));
    let states = states(&inspected);
    let live = states.iter().filter(|state| !matches!(state, Dead | Pending)).count();
    assert_eq!(live as u64, info.live_tokens);
    let without_row: Vec<usize> = (0..states.len()).filter(|&at| states[at] == Pending).collect();
    assert_eq!(without_row, [states.len() - 1], "the last token's row is computed with the next turn");
    let mut held = 0;
    for (turn, len) in turns.iter().zip(lens) {
        let (number, usage) = (turn.end.turn, turn.usage());
        let brought = inspected.tokens[held..len].iter().all(|token| token.turn == number);
        assert!(brought, "turn {number} brought the tokens {held} to {len}");
        let answer = &inspected.tokens[len - turn.tokens.len()..len];
        assert!(answer.iter().zip(&turn.tokens).all(|(token, id)| token.id == *id));
        assert!(answer.iter().all(|token| token.origin() == Origin::Assistant));
        held = len;
        let died = inspected.tokens.iter().filter(|token| token.died_in_turn == Some(number)).count();
        assert_eq!(died as u32, usage.evicted_tokens, "turn {number}");
        let events: Vec<_> = inspected.prunes.iter().filter(|event| event.turn == number).collect();
        if usage.evicted_tokens == 0 {
            assert_eq!(events, Vec::<&wire::PruneEvent>::new());
            continue;
        }
        let event = wire::PruneEvent {
            revived: 0,
            turn: number,
            at: usage.prompt_tokens,
            live_before: BUDGET + usage.evicted_tokens,
            live_after: BUDGET,
            evicted: usage.evicted_tokens,
            freed: usage.freed_slots,
        };
        assert_eq!(events, [&event]);
    }
    let dead = |token: &wire::InspectedToken| token.state() == Dead;
    assert!(inspected.tokens.iter().all(|token| token.died_in_turn.is_some() == dead(token)));
    inspected
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ids_over_two_turns() {
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    let mut prompt = words(1, 100);
    let mut turns = Vec::new();
    for turn in 0..2 {
        let request = pruned("streaming", token_request("ids", &prompt, 8));
        turns.push(run(client, wire::GenerateRequest { protected_tokens: 10, ..request }).await.unwrap());
        let inspected = check(client, "ids", &turns).await;
        assert_eq!((count(&inspected, Sink), count(&inspected, Protected)), (4, 6));
        // Streaming keeps the front and the newest, and nobody else has the rows in between.
        let states = states(&inspected);
        let evicted: u32 = turns.iter().map(|turn: &Answer| turn.usage().evicted_tokens).sum();
        let first_kept = 10 + evicted as usize;
        assert!(states[10..first_kept].iter().all(|state| *state == Dead));
        assert!(states[first_kept..states.len() - 1].iter().all(|state| *state == Live));
        assert!(inspected.tokens.iter().all(|token| token.score.is_none()), "positions are no scores");
        assert_eq!(inspected.tokens[50].origin(), Origin::User);
        prompt.extend(&turns[turn].tokens);
        let ids: Vec<u32> = inspected.tokens.iter().map(|token| token.id).collect();
        assert_eq!(ids, prompt);
        prompt.extend(words(2, 30));
    }
    assert_eq!(turns[0].usage().evicted_tokens, 100 - BUDGET);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_messages_with_their_roles_text_and_scores() {
    use wire::Role::{Assistant, System, User};
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    let question = "The door code is 4821. ".repeat(12);
    let mut messages = vec![(System, "You are a terse assistant."), (User, question.as_str())];
    let request = |messages: &[_]| pruned("intent-query", chat_request("chat", messages, 8));
    let mut turns = vec![run(client, request(&messages)).await.unwrap()];
    let scored = check(client, "chat", &turns).await;
    let scores: Vec<f32> = scored.tokens.iter().filter_map(|token| token.score).collect();
    let mean = scores.iter().sum::<f32>() / scores.len() as f32;
    assert!((mean - 1.0).abs() < 1e-3, "the mean of the candidates is 1, not {mean}");
    assert!(scored.tokens.iter().all(|token| token.state() != Dead || token.score.is_some()));

    let said = turns[0].text.clone();
    messages.extend([(Assistant, said.as_str()), (User, "And what is the code?")]);
    turns.push(run(client, request(&messages)).await.unwrap());
    let inspected = check(client, "chat", &turns).await;
    let text_of = |origin: Origin| {
        let tokens = inspected.tokens.iter().filter(|token| token.origin() == origin);
        String::from_utf8(tokens.flat_map(|token| token.text.clone()).collect()).unwrap()
    };
    assert!(text_of(Origin::System).contains("You are a terse assistant."));
    assert!(text_of(Origin::User).contains(&question) && text_of(Origin::User).contains("what is the code?"));
    assert!(text_of(Origin::Assistant).contains(&said));
    assert_eq!(text_of(Origin::Template), "<|im_start|>assistant\n".repeat(2), "what asks for an answer");
    let system = inspected.tokens.iter().filter(|token| token.origin() == Origin::System).count();
    assert_eq!(count(&inspected, Sink) + count(&inspected, Protected), system);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_templates_own_system_message_is_protected_as_a_given_one_is() {
    use wire::Role::User;
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    let question = "The door code is 4821. ".repeat(20);
    let request = pruned("streaming", chat_request("own", &[(User, question.as_str())], 4));
    let answer = run(client, request).await.unwrap();
    assert!(answer.usage().evicted_tokens > 0);
    let inspected = client.inspect_session("own").await.unwrap();
    let front = inspected.tokens.iter().take_while(|token| matches!(token.state(), Sink | Protected));
    let text = String::from_utf8(front.flat_map(|token| token.text.clone()).collect()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_others_hold_are_shared_and_nobody_is_not_found() {
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    // Without a budget nothing is pruned, and all exact rows are on offer to other sessions.
    let answer = run(client, token_request("whole", &words(3, 40), 6)).await.unwrap();
    let inspected = check(client, "whole", &[answer]).await;
    assert_eq!((count(&inspected, Shared), count(&inspected, Dead)), (45, 0));
    let missing = client.inspect_session("nobody").await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound, "{missing}");
    client.close_session("whole").await.unwrap();
    assert_eq!(client.inspect_session("whole").await.unwrap_err().code(), ErrorCode::NotFound);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_given_up_are_pending_and_what_was_evicted_stays_dead() {
    let cluster = Cluster::start(1, |options| options.kv_slots = 400).await;
    let request = pruned("streaming", token_request("s", &words(6, 100), 8));
    run(&cluster.client, request).await.unwrap();
    // Needs the whole pool, so that every idle session gives up its rows.
    run(&cluster.client, token_request("", &words(7, 380), 4)).await.unwrap();
    let inspected = cluster.client.inspect_session("s").await.unwrap();
    assert_eq!((count(&inspected, Dead), count(&inspected, Pending)), (36, 72));
    assert_eq!(inspected.session.unwrap().live_tokens, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_turn_adds_nothing_and_what_it_evicted_stays_dead() {
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    let first = words(8, 40);
    let answer = run(client, pruned("streaming", token_request("s", &first, 8))).await.unwrap();
    check(client, "s", std::slice::from_ref(&answer)).await;
    let next = [first, answer.tokens, words(9, 100)].concat();
    let request = pruned("streaming", token_request("s", &next, 200));
    let mut frames = client.generate(request, None).await.unwrap();
    let mut tokens = 0;
    // The second token comes after the prune.
    while tokens < 2 {
        if let Some(Frame::Chunk(chunk)) = frames.next().await.unwrap() {
            tokens += chunk.token_ids.len();
        }
    }
    drop(frames);
    let inspected = client.inspect_session("s").await.unwrap();
    assert_eq!((inspected.tokens.len(), inspected.session.as_ref().unwrap().turns), (48, 1));
    let sinks = SINKS as usize;
    let found = states(&inspected);
    assert!(found[..sinks].iter().all(|state| *state == Sink));
    assert!(found[sinks..47].iter().all(|state| *state == Dead), "{found:?}");
    assert!(inspected.tokens[sinks..47].iter().all(|token| token.died_in_turn == Some(1)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_waits_for_the_turn_that_runs() {
    let cluster = Cluster::start(1, |_| {}).await;
    let client = &cluster.client;
    // Short, so that it ends within the limit of a call on a busy machine too.
    let mut frames = client.generate(token_request("busy", &words(4, 30), 12), None).await.unwrap();
    while !matches!(frames.next().await.unwrap(), Some(Frame::Chunk(_))) {}
    let rest = async {
        while let Some(frame) = frames.next().await.unwrap() {
            if matches!(frame, Frame::Finished(_)) {
                return;
            }
        }
    };
    let (inspected, ()) = tokio::join!(client.inspect_session("busy"), rest);
    let inspected = inspected.unwrap();
    assert_eq!((inspected.tokens.len(), inspected.session.unwrap().turns), (42, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_text_a_page_and_json() {
    let cluster = Cluster::start(1, |_| {}).await;
    let request = pruned("streaming", token_request("shown", &words(5, 100), 8));
    run(&cluster.client, request).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("pages/shown.html");
    let uri = cluster.client.uri();
    let inspect = async |session: &str, more: &[&str]| {
        let output = process::run(&[&["inspect", session, "--server", uri], more].concat(), "").await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, shown, _) = inspect("shown", &["--width", "80"]).await;
    assert_eq!(code, Some(0));
    for part in
        ["session shown\n", "policy streaming, budget 64 tokens", "108 tokens, 71 live, 1 prune event\n"]
    {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "colour is for terminals");
    let (code, said, _) = inspect("shown", &["--html", page.to_str().unwrap()]).await;
    assert!(code == Some(0) && said.contains("108 tokens, 71 live"), "{said}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<b id=\"count-dead\">36</b>"), "{page}");
    let (_, json, _) = inspect("shown", &["--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let positions = json["positions"].as_array().unwrap();
    assert_eq!(positions.iter().filter(|position| position["state"] == "dead").count(), 36);
    assert_eq!((&json["events"][0]["at"], &positions[50]["role"]), (&100.into(), &"user".into()));
    let (code, _, error) = inspect("nobody", &[]).await;
    assert!(code == Some(1) && error.contains("no group holds session nobody"), "{error}");
    cluster.stop().await;
}

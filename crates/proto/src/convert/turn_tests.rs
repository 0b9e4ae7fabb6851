//! What the edge refuses, and that it names the field.

use hawser_common::chat::{Message, Role, Tool, ToolCall};
use hawser_common::retention::{Choice, Policy, Retention};
use hawser_common::{Coded, ErrorCode};

use super::*;
use crate::convert::{MAX_CONTENT_BYTES, MAX_MESSAGES, MAX_TOOLS, retention};

fn user(text: &str) -> v1::Message {
    (&Message::text(Role::User, text)).into()
}

fn chat(messages: Vec<v1::Message>) -> v1::GenerateRequest {
    let conversation = v1::Conversation { messages, ..Default::default() };
    v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Conversation(conversation)),
        ..Default::default()
    }
}

fn tokens(ids: Vec<u32>, extent: i32) -> v1::GenerateRequest {
    let input = v1::generate_request::Input::Tokens(v1::TokenInput { ids, extent });
    v1::GenerateRequest { session: "s".into(), input: Some(input), ..Default::default() }
}

#[track_caller]
fn refused(wire: v1::GenerateRequest, text: &str) {
    let error = turn_request(wire).expect_err("the request is refused");
    assert_eq!(error.code(), ErrorCode::Invalid);
    assert!(error.to_string().contains(text), "{error} does not say {text:?}");
}

#[test]
fn a_full_request_comes_through() {
    let call = ToolCall { id: "c1".into(), name: "ls".into(), arguments_json: r#"{"b":1,"a":[2]}"#.into() };
    let messages = vec![
        Message::text(Role::System, "be brief"),
        Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") },
        Message {
            tool_call_id: Some("c1".into()),
            name: Some("ls".into()),
            ..Message::text(Role::Tool, "a b")
        },
    ];
    let tools = vec![Tool {
        name: "ls".into(),
        description: "lists".into(),
        parameters_json: r#"{"type":"object"}"#.into(),
    }];
    let wire = v1::GenerateRequest {
        session: "s-1".into(),
        model: "m".into(),
        input: Some(v1::generate_request::Input::Conversation(v1::Conversation {
            messages: messages.iter().map(Into::into).collect(),
            tools: tools.iter().map(Into::into).collect(),
            extent: v1::Extent::Delta.into(),
        })),
        sampling: Some(v1::Sampling { temperature: Some(0.0), seed: Some(7), ..Default::default() }),
        intent: Some(v1::Intent { text: "next".into(), ..Default::default() }),
        protected_tokens: 3,
        no_continuation: true,
        retention: Some(v1::Retention {
            policy: "h2o".into(),
            budget_tokens: 512,
            bounded: Some(true),
            ..Default::default()
        }),
    };
    let turn = turn_request(wire).unwrap();
    assert_eq!(turn.session.unwrap().as_str(), "s-1");
    assert_eq!(turn.extent, Extent::Delta);
    assert_eq!(turn.input, Input::Messages { messages, tools });
    assert_eq!((turn.sampling.temperature, turn.sampling.top_p, turn.sampling.seed), (0.0, 1.0, Some(7)));
    let chosen = turn.retention.over(&Retention::default());
    let expected =
        Retention { policy: Policy::H2o, budget_tokens: 512, bounded: true, ..Retention::default() };
    assert_eq!(chosen, expected);
    assert_eq!(retention(&v1::Retention::from(&chosen)).unwrap(), Choice::from(&chosen));
}

#[test]
fn input_is_bounded_from_both_sides() {
    refused(v1::GenerateRequest::default(), "input is missing");
    refused(chat(vec![]), "messages is empty");
    refused(chat(vec![user(""); MAX_MESSAGES + 1]), "messages has 10001 entries; at most 10000");
    let half = "x".repeat(MAX_CONTENT_BYTES / 2 + 1);
    refused(chat(vec![user(&half), user(&half)]), "conversation has 16777218 bytes of text");
    refused(tokens(vec![], 0), "tokens.ids is empty");
    refused(tokens(vec![1; MAX_INPUT_TOKENS + 1], 0), "tokens.ids has 4194305");
    let mut wire = chat(vec![user("hi")]);
    if let Some(v1::generate_request::Input::Conversation(chat)) = &mut wire.input {
        chat.tools = vec![v1::Tool { name: "t".into(), ..Default::default() }; MAX_TOOLS + 1];
    }
    refused(wire, "tools has 1025");
}

#[test]
fn roles_json_and_misplaced_fields_name_their_message() {
    let of = |role: i32| v1::Message { role, content: "x".into(), ..Default::default() };
    refused(chat(vec![user("hi"), of(0)]), "messages[1].role is 0");
    refused(chat(vec![of(9)]), "messages[0].role is 9");
    let call = |text: &str| v1::ToolCall { id: "1".into(), name: "f".into(), arguments_json: text.into() };
    for text in ["", "[1]", "{", "3", r#"{"a":1} x"#, &format!("{{\"a\":{}", "[".repeat(100_000))] {
        let bad = v1::Message { tool_calls: vec![call(text)], ..of(v1::Role::Assistant.into()) };
        refused(chat(vec![bad]), "messages[0].tool_calls[0].arguments_json is not a JSON object");
    }
    let calls = v1::Message { tool_calls: vec![call("{}")], ..user("x") };
    refused(chat(vec![calls]), "belongs to assistant messages");
    let answer = v1::Message { tool_call_id: "c".into(), ..user("x") };
    refused(chat(vec![answer]), "belongs to tool messages");
    let mut wire = chat(vec![user("hi")]);
    if let Some(v1::generate_request::Input::Conversation(chat)) = &mut wire.input {
        let tool = v1::Tool { name: "t".into(), parameters_json: "[]".into(), ..Default::default() };
        chat.tools = vec![tool];
    }
    refused(wire, "tools[0].parameters_json is not a JSON object");
}

#[test]
fn scalars_are_checked() {
    refused(
        v1::GenerateRequest { session: "a/b".into(), ..chat(vec![user("x")]) },
        "session: session id has",
    );
    refused(v1::GenerateRequest { model: "m".repeat(300), ..chat(vec![user("x")]) }, "model has 300 bytes");
    refused(tokens(vec![1], 7), "tokens.extent is 7");
    refused(v1::GenerateRequest { session: String::new(), ..tokens(vec![1], 2) }, "session is missing");
    let sampling = Some(v1::Sampling { top_p: Some(f32::NAN), ..Default::default() });
    refused(v1::GenerateRequest { sampling, ..chat(vec![user("x")]) }, "sampling.top_p is NaN");
    let retention = Some(v1::Retention { policy: "magic".into(), ..Default::default() });
    refused(v1::GenerateRequest { retention, ..chat(vec![user("x")]) }, "\"magic\"; use full");
    let retention = Some(v1::Retention { pool_positions: Some(4), ..Default::default() });
    refused(v1::GenerateRequest { retention, ..chat(vec![user("x")]) }, "retention.pool_positions is 4");
    let empty = v1::Span { start: 3, end: 3 };
    let intent = Some(v1::Intent { pin_messages: vec![empty], ..Default::default() });
    refused(v1::GenerateRequest { intent, ..chat(vec![user("x")]) }, "intent.pin_messages is 3 to 3");
}

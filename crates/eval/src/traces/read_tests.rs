use std::path::{Path, PathBuf};

use hawser_common::chat::{Message, Role, Tool};
use hawser_common::{Coded, ErrorCode};

use super::*;

const GOOD: &str = r#"{"id":"a","source":"mine","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]}"#;

/// A file that is gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("hawser-traces-{}-{name}.jsonl", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read(name: &str, text: &str) -> Result<Vec<Trace>, TraceError> {
    read_traces(&Scratch::new(name, text.as_bytes()).0)
}

/// The fault of a session with these messages.
fn fault(name: &str, messages: &str) -> TraceFault {
    let line = format!(r#"{{"id":"a","source":"mine","messages":[{messages}]}}"#);
    match read(name, &line) {
        Err(TraceError::Invalid { line: 1, fault, .. }) => fault,
        other => panic!("{messages}: {other:?}"),
    }
}

#[test]
fn lines_are_sessions_in_order_and_empty_ones_are_passed_over() {
    let second = GOOD.replace(r#""a""#, r#""b""#);
    let traces = read("order", &format!("{GOOD}\n\n  \r\n{second}")).unwrap();
    let ids: Vec<&str> = traces.iter().map(|trace| trace.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(traces[0].split, None);
}

#[test]
fn what_is_written_is_read_again() {
    for file in ["bfcl", "tau2-retail"] {
        let traces = fixture(file);
        let lines: Vec<String> = traces.iter().map(|trace| serde_json::to_string(trace).unwrap()).collect();
        assert_eq!(read(file, &lines.join("\n")).unwrap(), traces, "{file}");
    }
}

#[test]
fn errors_name_the_line_and_the_column() {
    let unknown = GOOD.replace(r#""source""#, r#""colour":1,"source""#);
    let error = read("unknown", &format!("{GOOD}\n\n{unknown}")).unwrap_err();
    assert!(matches!(&error, TraceError::Malformed { line: 3, column: 18, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("line 3, column 18: unknown field `colour`"), "{text}");
    assert!(!text.contains("line 1"), "{text}");
    assert_eq!(error.code(), ErrorCode::Invalid);
}

#[test]
fn unknown_fields_are_refused_at_every_level() {
    let call =
        r#"{"role":"assistant","tool_calls":[{"id":"1","name":"f","arguments":{},"type":"function"}]}"#;
    let tool = r#"{"id":"a","source":"s","tools":[{"name":"f","strict":true}],"messages":[]}"#;
    let message = r#"{"id":"a","source":"s","messages":[{"role":"user","content":"x","refusal":null}]}"#;
    let call = format!(r#"{{"id":"a","source":"s","messages":[{call}]}}"#);
    for (name, line) in [("call", call.as_str()), ("tool", tool), ("message", message)] {
        let error = read(&format!("field-{name}"), line).unwrap_err();
        assert!(error.to_string().contains("unknown field"), "{name}: {error}");
    }
}

#[test]
fn ids_are_not_used_twice() {
    let error = read("twice", &format!("{GOOD}\n{GOOD}")).unwrap_err();
    assert!(
        matches!(&error, TraceError::Invalid { line: 2, fault: TraceFault::RepeatedId { .. }, .. }),
        "{error:?}"
    );
}

#[test]
fn limits_hold() {
    let long = vec![b' '; usize::try_from(MAX_LINE_BYTES).unwrap() + 1];
    let file = Scratch::new("long", &[GOOD.as_bytes(), b"\n", &long].concat());
    assert!(matches!(read_traces(&file.0), Err(TraceError::LineTooLong { line: 2, .. })));
    assert!(matches!(read("none", "\n"), Err(TraceError::NoSession { .. })));
    let error = read_traces(Path::new("/no/such/file")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    let said = r#"{"role":"user","content":"x"}"#;
    let many = vec![said; MAX_MESSAGES + 1].join(",");
    assert_eq!(fault("many", &many), TraceFault::Messages { messages: MAX_MESSAGES + 1 });
    let line = GOOD.replace(r#""id":"a""#, &format!(r#""id":"{}""#, "x".repeat(MAX_ID_BYTES + 1)));
    assert!(matches!(read("id", &line), Err(TraceError::Invalid { fault: TraceFault::Id { .. }, .. })));
}

#[test]
fn conversations_that_no_template_can_render_are_refused() {
    let user = r#"{"role":"user","content":"x"}"#;
    let system = r#"{"role":"system","content":"x"}"#;
    let says = r#"{"role":"assistant","content":"x"}"#;
    let calls = r#"{"role":"assistant","tool_calls":[{"id":"1","name":"f"},{"id":"2","name":"f"}]}"#;
    let result = r#"{"role":"tool","content":"x","tool_call_id":"1"}"#;
    let message = 3;
    let id = "1".to_owned();
    let cases = [
        ("", TraceFault::NothingToMeasure),
        (user, TraceFault::NothingToMeasure),
        (says, TraceFault::Start { message: 1, role: Role::Assistant }),
        (&format!("{system},{system}"), TraceFault::Start { message: 2, role: Role::System }),
        (&format!("{user},{says},{system}"), TraceFault::LateSystem { message }),
        (&format!("{user},{says},{result}"), TraceFault::UnknownCall { message, id: id.clone() }),
        (&format!("{user},{calls},{user}"), TraceFault::UnansweredCall { message, id: id.clone() }),
        (
            &format!("{user},{calls},{result},{result}"),
            TraceFault::UnknownCall { message: 4, id: id.clone() },
        ),
        (&format!("{user},{}", calls.replace('2', "1")), TraceFault::RepeatedCall { message: 2, id }),
        (
            &format!("{user},{calls},{}", result.replace(r#","tool_call_id":"1""#, "")),
            TraceFault::NoCallId { message },
        ),
        (&format!(r#"{user},{{"role":"assistant"}}"#), TraceFault::EmptyAnswer { message: 2 }),
        (&calls.replace("assistant", "user"), TraceFault::CallsOfRole { message: 1, role: Role::User }),
        (
            &result.replace(r#""tool""#, r#""user""#),
            TraceFault::ResultOfRole { message: 1, role: Role::User },
        ),
    ];
    for (number, (messages, expected)) in cases.into_iter().enumerate() {
        assert_eq!(fault(&format!("case-{number}"), messages), expected, "{messages}");
    }
    // A session may end in a call.
    read("open", &format!(r#"{{"id":"a","source":"s","messages":[{user},{calls}]}}"#)).unwrap();
}

fn fixture(name: &str) -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/traces");
    read_traces(&folder.join(format!("{name}.jsonl"))).unwrap()
}

#[test]
fn the_committed_sessions_are_read() {
    for (name, source) in [("bfcl", "bfcl-base"), ("tau2-retail", "tau2-retail")] {
        let traces = fixture(name);
        assert_eq!(traces.len(), 3, "{name}");
        for trace in &traces {
            assert_eq!(trace.source, source);
            assert!(trace.split.is_some() && !trace.tools.is_empty(), "{}", trace.id);
            let calls = trace.messages.iter().map(|message| message.tool_calls.len()).sum::<usize>();
            let results = trace.messages.iter().filter(|message| message.role == Role::Tool).count();
            assert!(calls >= 6 && calls == results, "{}: {calls} calls, {results} results", trace.id);
        }
    }
}

#[test]
fn messages_and_tools_become_those_of_the_vocabulary_with_their_keys_in_order() {
    let call = r#"{"id":"1","name":"f","arguments":{"z":1,"a":"ü"}}"#;
    let line = format!(
        r#"{{"id":"a","source":"s","tools":[{{"name":"f","parameters":{{"type":"object"}}}},{{"name":"g"}}],
        "messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{call}]}},
        {{"role":"tool","content":"y","tool_call_id":"1","name":"f"}}]}}"#
    )
    .replace('\n', "");
    let trace = read("words", &line).unwrap().remove(0);
    let messages: Vec<Message> = trace.messages.iter().map(Message::from).collect();
    assert_eq!(messages[1].tool_calls[0].arguments_json, r#"{"z":1,"a":"ü"}"#);
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("1"));
    let tools: Vec<Tool> = trace.tools.iter().map(Tool::from).collect();
    assert_eq!(
        (tools[0].parameters_json.as_str(), tools[1].parameters_json.as_str()),
        (r#"{"type":"object"}"#, "")
    );
}

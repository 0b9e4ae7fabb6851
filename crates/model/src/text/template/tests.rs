use hawser_common::chat::{Role, ToolCall};

use super::*;
use crate::text::testing::tokenizer;

fn request<'a>(messages: &'a [Message], tools: &'a [Tool]) -> RenderRequest<'a> {
    RenderRequest { messages, tools, add_generation_prompt: true, now_unix_s: 1_735_689_600 }
}

fn render(source: &str, messages: &[Message]) -> Result<String, RenderError> {
    let template = ChatTemplate::compile(source).unwrap();
    template.render(&tokenizer(), &request(messages, &[])).map(|rendered| rendered.text().to_owned())
}

fn user(text: &str) -> [Message; 1] {
    [Message::text(Role::User, text)]
}

#[test]
fn e22_raise_exception_is_the_requests_fault_with_the_templates_words() {
    let source =
        "{% macro no() %}{{ raise_exception('not ' + messages[0].content) }}{% endmacro %}{{ no() }}";
    let error = render(source, &user("<|end|>")).unwrap_err();
    assert!(matches!(&error, RenderError::Raised { message } if message == "not <|end|>"), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Invalid);
}

#[test]
fn e22_time_comes_from_the_request() {
    let text = render("{{ strftime_now('%d %b %Y, %H:%M') }}", &user("x")).unwrap();
    assert_eq!(text, "01 Jan 2025, 00:00");
    assert!(matches!(render("{{ strftime_now('%') }}", &user("x")), Err(RenderError::Failed(_))));
}

#[test]
fn e22_undefined_is_empty_but_has_no_attributes() {
    assert_eq!(render("[{{ nothing }}{{ messages[0].nothing }}]", &user("x")).unwrap(), "[]");
    assert!(render("{{ nothing.more }}", &user("x")).is_err());
    assert!(render("{{ nothing | tojson }}", &user("x")).is_err());
    assert_eq!(render("[{% for x in nothing %}x{% endfor %}]", &user("x")).unwrap(), "[]");
    assert!(render("{% for t in tools %}{% endfor %}", &user("x")).is_err(), "none is not iterable");
    assert_eq!(render("{{ tools }} {{ true }} {{ 1.0 }}", &user("x")).unwrap(), "None True 1.0");
}

#[test]
fn e22_generation_tags_loop_controls_and_continued_strings() {
    let source = "{% for m in messages %}\n  {%- generation -%}  {{ m.content }}  {% endgeneration %}\n{% break %}{% endfor %}";
    assert_eq!(render(source, &[user("a"), user("b")].concat()).unwrap(), "a  ");
    assert_eq!(render("{{ 'joined \\\nline' }}", &user("x")).unwrap(), "joined line");
}

#[test]
fn e22_arguments_and_parameters_keep_their_order_and_must_be_json() {
    let call = |json: &str| Message {
        tool_calls: vec![ToolCall { id: "c1".into(), name: "f".into(), arguments_json: json.into() }],
        ..Message::text(Role::Assistant, "")
    };
    let source = "{{ messages[0].tool_calls[0] | tojson }}";
    assert_eq!(
        render(source, &[call(r#"{"z": 1, "a": "<|end|>"}"#)]).unwrap(),
        r#"{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": "<|end|>"}}}"#
    );
    assert!(render(source, &[call("")]).unwrap().contains(r#""arguments": {}"#));
    assert!(matches!(render(source, &[call("{")]), Err(RenderError::Arguments { message: 0, .. })));
    let tool = Tool { name: "f".into(), description: String::new(), parameters_json: "{".into() };
    let template = ChatTemplate::compile("x").unwrap();
    let error = template.render(&tokenizer(), &request(&user("x"), &[tool])).unwrap_err();
    assert!(matches!(error, RenderError::Parameters { .. }));
}

/// Words that occur inside special tokens are compared and looked up as they are.
#[test]
fn words_inside_special_tokens_are_left_alone() {
    let source = "{{ messages[0].content == 'end' }} {{ messages[0].content.title() }} {{ tools[0].function.parameters.end }}";
    let template = ChatTemplate::compile(source).unwrap();
    let tool =
        Tool { name: "s".into(), description: "x <".into(), parameters_json: r#"{"end": "e"}"#.into() };
    let rendered = template.render(&tokenizer(), &request(&user("end"), &[tool])).unwrap();
    assert_eq!(rendered.text(), "True End e");
}

/// Each would run or grow for ever, or nearly.
#[test]
fn a_hostile_template_ends_with_an_error() {
    let sources = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}some text some text{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 999999999999 }}",
        "{% for a in range(99999) %}{% for a in range(99999) %}{{ messages | tojson(indent=99999999) }}{% endfor %}{% endfor %}",
    ];
    for source in sources {
        let Err(error) = render(source, &user("x")) else { panic!("{source} came to an end") };
        assert_eq!(error.code(), ErrorCode::Invalid, "{source}");
    }
    assert_eq!(render("{{ messages[0].content }}", &user("next")).unwrap(), "next");
}

#[test]
fn a_long_conversation_has_work_to_spare() {
    let messages: Vec<Message> =
        (0..2000).map(|n| Message::text(Role::User, format!("{n} ").repeat(200))).collect();
    let source = "{% for m in messages %}{% if loop.last or not messages[loop.index].nothing %}<|s|>{{ m.role + '\n' + m.content | trim }}<|end|>\n{% endif %}{% endfor %}";
    assert!(render(source, &messages).unwrap().ends_with("1999 1999<|end|>\n"));
    let short: Vec<Message> = (0..5000).map(|_| Message::text(Role::User, "x")).collect();
    let collects = "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.l | length }}";
    assert_eq!(render(collects, &short).unwrap(), "5000");
}

#[test]
fn what_does_not_parse_or_is_empty_is_refused() {
    assert!(matches!(ChatTemplate::compile("{% if %}"), Err(TemplateError::Syntax(_))));
    let long = " ".repeat(MAX_TEMPLATE_BYTES + 1);
    assert!(matches!(ChatTemplate::compile(&long), Err(TemplateError::TooLong { .. })));
    assert!(matches!(render("x", &[]), Err(RenderError::NoMessages)));
}

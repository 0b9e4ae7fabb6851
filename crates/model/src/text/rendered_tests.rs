use hawser_common::chat::{Message, Role};
use proptest::prelude::*;

use super::super::testing::{END, LONG, SHORT, START, tokenizer, vocab};
use super::super::{ChatTemplate, GgufVocab, RenderRequest, encode_marked, mark_tokens};
use super::*;

/// Puts nothing between markup and content, so that the two may join into anything.
const TIGHT: &str = "{% for m in messages %}<|s|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|s|>assistant:{% endif %}";

fn render(tokenizer: &Tokenizer, contents: &[String], open: bool) -> Rendered {
    let messages: Vec<Message> = contents.iter().map(|c| Message::text(Role::User, c.clone())).collect();
    let request =
        RenderRequest { messages: &messages, tools: &[], add_generation_prompt: open, now_unix_s: 0 };
    ChatTemplate::compile(TIGHT).unwrap().render(tokenizer, &request).unwrap()
}

/// Everything that could spell a special token, whole or in parts, the two signs included.
fn hostile() -> impl Strategy<Value = String> {
    "(<\\|s\\|>|<\\|e\\|>|<x>|<\\|end\\|>|<\\||\\|>|<|>|e|end|hello| |\u{10F8F1}|\u{10F8F2}|0|漢|\n){0,10}"
}

proptest! {
    /// The special tokens of a rendering are the template's own, and the text is what the template wrote.
    #[test]
    fn e21_no_content_becomes_a_special_token(contents in prop::collection::vec(hostile(), 1..4)) {
        let tokenizer = tokenizer();
        let rendered = render(&tokenizer, &contents, false);
        let expected: String = contents.iter().map(|c| format!("<|s|>user:{c}<|end|>")).collect();
        prop_assert_eq!(rendered.text(), &expected);
        let ids = rendered.tokens(&tokenizer);
        let specials: Vec<u32> = ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect();
        prop_assert_eq!(specials, [START, END].repeat(contents.len()));
        let plain: String = contents.iter().map(|c| format!("user:{c}")).collect();
        prop_assert_eq!(tokenizer.decode(&ids), plain);
    }

    /// The marked form of a rendering, of its tokens, and what encoding it gives, all agree.
    #[test]
    fn e21_marked_form_and_tokens_say_the_same(contents in prop::collection::vec(hostile(), 1..4), open in any::<bool>()) {
        let tokenizer = tokenizer();
        let rendered = render(&tokenizer, &contents, open);
        let ids = rendered.tokens(&tokenizer);
        prop_assert_eq!(&mark_tokens(&tokenizer, &ids), &rendered.marked);
        prop_assert_eq!(encode_marked(&tokenizer, &rendered.marked), ids);
    }

    /// Where no content spells a special token, the tokens are those of the rendered text.
    #[test]
    fn tokens_are_those_of_the_text(contents in prop::collection::vec("(hello|abc|[ -;=?-{}~]|漢|😀|\n){0,12}", 1..4)) {
        let tokenizer = tokenizer();
        let rendered = render(&tokenizer, &contents, true);
        prop_assert_eq!(rendered.tokens(&tokenizer), tokenizer.encode_special(rendered.text()));
    }

    /// Any tokens at all have a marked form that reads back to the same marked form.
    #[test]
    fn marking_is_stable(ids in prop::collection::vec(0u32..290, 0..24)) {
        let tokenizer = tokenizer();
        let marked = mark_tokens(&tokenizer, &ids);
        let again = encode_marked(&tokenizer, &marked);
        prop_assert_eq!(&mark_tokens(&tokenizer, &again), &marked);
        let specials = |ids: &[u32]| ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect::<Vec<_>>();
        prop_assert_eq!(specials(&again), specials(&ids));
    }

    /// An answer in whatever tokens the model chose stays as it is when the conversation goes on from it.
    #[test]
    fn a_history_that_goes_on_keeps_its_tokens(
        first in hostile(),
        answer in prop::collection::vec(5u32..133, 0..8),
        ended in any::<bool>(),
        next in hostile(),
    ) {
        let tokenizer = tokenizer();
        let mut log = render(&tokenizer, std::slice::from_ref(&first), true).tokens(&tokenizer);
        log.extend(&answer);
        if ended {
            log.push(END);
        }
        let messages = [Message::text(Role::User, first), Message::text(Role::Assistant, tokenizer.decode(&answer)), Message::text(Role::User, next)];
        let request = RenderRequest { messages: &messages, tools: &[], add_generation_prompt: true, now_unix_s: 0 };
        let rendered = ChatTemplate::compile(TIGHT).unwrap().render(&tokenizer, &request).unwrap();
        let ids = rendered.tokens_after(&tokenizer, &log);
        prop_assert_eq!(&ids[..log.len()], &log[..]);
        prop_assert_eq!(mark_tokens(&tokenizer, &ids), rendered.marked);
    }

    /// Whatever the log holds, the result is the rendering.
    #[test]
    fn a_changed_history_is_cut_at_a_special_token(log in prop::collection::vec(0u32..290, 0..24), contents in prop::collection::vec(hostile(), 1..4)) {
        let tokenizer = tokenizer();
        let rendered = render(&tokenizer, &contents, true);
        let ids = rendered.tokens_after(&tokenizer, &log);
        prop_assert_eq!(mark_tokens(&tokenizer, &ids), rendered.marked);
    }
}

#[test]
fn a_changed_message_keeps_the_tokens_before_it() {
    let tokenizer = tokenizer();
    // "hello" written letter by letter, as no encoding would.
    let letters: Vec<u32> = "hello".chars().flat_map(|c| tokenizer.encode(&c.to_string())).collect();
    let mut log = vec![START];
    log.extend(tokenizer.encode("user:"));
    log.extend(&letters);
    log.push(END);
    let kept = log.len();
    log.push(START);
    log.extend(tokenizer.encode("user:abc"));
    let rendered = render(&tokenizer, &["hello".to_owned(), "abd".to_owned()], false);
    let ids = rendered.tokens_after(&tokenizer, &log);
    assert_eq!(&ids[..=kept], &log[..=kept]);
    assert_eq!(ids[kept + 1..], tokenizer.encode_special("user:abd<|end|>"));
    assert_eq!(rendered.tokens_after(&tokenizer, &[]), rendered.tokens(&tokenizer));
}

#[test]
fn a_short_special_before_text_that_would_lengthen_it_stays_short() {
    let tokenizer = tokenizer();
    let ids = [vec![SHORT], tokenizer.encode("<x>")].concat();
    let marked = mark_tokens(&tokenizer, &ids);
    assert_eq!(encode_marked(&tokenizer, &marked), ids);
    assert_ne!(marked, mark_tokens(&tokenizer, &[LONG]));
}

#[test]
fn e21_the_begin_token_stands_once_with_or_without_the_template() {
    let tokenizer = Tokenizer::from_vocab(GgufVocab { add_bos: true, bos: Some(SHORT), ..vocab() }).unwrap();
    let message = [Message::text(Role::User, "hello")];
    let request =
        RenderRequest { messages: &message, tools: &[], add_generation_prompt: false, now_unix_s: 0 };
    let tokens = |source: &str| {
        let rendered = ChatTemplate::compile(source).unwrap().render(&tokenizer, &request).unwrap();
        assert!(rendered.marked.starts_with("<|e|>"));
        rendered.tokens(&tokenizer)
    };
    let expected = [vec![SHORT], tokenizer.encode("hello")].concat();
    assert_eq!(tokens("{{ bos_token }}{{ messages[0].content }}"), expected);
    assert_eq!(tokens("{{ messages[0].content }}"), expected);
}

/// Qwen's tokenizer reads composed characters, so a decomposed one in a message is no difference to the log.
#[test]
fn histories_are_compared_in_the_form_the_tokenizer_reads() {
    let tokenizer = Tokenizer::from_vocab(GgufVocab { pre: "qwen2".to_owned(), ..vocab() }).unwrap();
    let decomposed = render(&tokenizer, &["cafe\u{301}".to_owned()], false);
    let composed = render(&tokenizer, &["caf\u{e9}".to_owned()], false);
    assert_eq!(decomposed.tokens(&tokenizer), composed.tokens(&tokenizer));
    assert_eq!(decomposed.marked, composed.marked);
    assert_ne!(decomposed.text(), composed.text());
    let log = decomposed.tokens(&tokenizer);
    let longer = render(&tokenizer, &["cafe\u{301}".to_owned(), "abc".to_owned()], false);
    assert!(longer.tokens_after(&tokenizer, &log).starts_with(&log));
}

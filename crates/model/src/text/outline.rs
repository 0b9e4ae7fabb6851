//! Where each message of a rendered conversation ends, in tokens.
//!
//! A template says nothing of which text came from which message. But a conversation cut after a message renders to the
//! front of the whole one, as far as the template lets the front alone; so the common front is where the message ends.

use hawser_common::chat::Role;

use super::marked::{self, Piece};
use super::template::{ChatTemplate, RenderError, RenderRequest};
use super::tokenizer::Tokenizer;

/// Most messages whose ends are looked for: each costs a rendering. Older ones end together.
const MOST_CUTS: usize = 256;

/// A conversation's tokens and where its messages end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    pub tokens: Vec<u32>,
    /// Per message from `first` on, the tokens up to its end; ascending. What follows the last is the generation prompt.
    pub ends: Vec<usize>,
    /// The first message whose end is looked for.
    pub first: usize,
    /// The end of the very first message, where that is not among them.
    pub front: usize,
    /// What the template wrote of its own before the first message that is not a system message: a system message that
    /// it puts in, tools. Tokens from the beginning, a system message that was given included; 0 where it wrote none.
    pub preamble: usize,
}

impl ChatTemplate {
    /// Renders a conversation, keeps the tokens of `log` where it goes on from them, and finds the ends of the messages
    /// from `first` on.
    ///
    /// # Errors
    /// [`RenderError`] as for [`ChatTemplate::render`].
    pub fn outline(
        &self,
        tokenizer: &Tokenizer,
        request: &RenderRequest<'_>,
        log: &[u32],
        first: usize,
    ) -> Result<Outline, RenderError> {
        let whole = self.render(tokenizer, request)?;
        let tokens = whole.tokens_after(tokenizer, log);
        let flat = spelled(tokenizer, whole.pieces());
        let count = request.messages.len();
        let first = first.max(count.saturating_sub(MOST_CUTS)).min(count);
        let mut ends = Vec::with_capacity(count - first + 1);
        let mut last = 0;
        let front = (first > 0).then_some(1);
        for end in front.into_iter().chain(first + 1..=count) {
            let front = RenderRequest {
                messages: &request.messages[..end],
                add_generation_prompt: false,
                ..*request
            };
            // A template may refuse a conversation that ends here; then the message ends with the next one.
            if let Ok(front) = self.render(tokenizer, &front) {
                last = common(&flat, &spelled(tokenizer, front.pieces())).max(last);
                ends.push(Some(last));
            } else {
                ends.push(None);
            }
        }
        let mut ends = in_tokens(tokenizer, &tokens, &ends, flat.len());
        let front = if front.is_some() { ends.remove(0) } else { 0 };
        let preamble = self.preamble(tokenizer, request, &flat).unwrap_or(0);
        let preamble = in_tokens(tokenizer, &tokens, &[Some(preamble)], flat.len())[0];
        Ok(Outline { ends, tokens, first, front, preamble })
    }

    /// Bytes of the text before the first words that are neither a system message's nor the template's own. `None`: there
    /// are none, or the template does not let them be found.
    ///
    /// Where the words begin, two conversations differ that differ in the words only. What is before them is the message's
    /// header too: without tools it begins with the last special token, and does not count. With tools it does, since
    /// some templates write tools into the first user message.
    fn preamble(&self, tokenizer: &Tokenizer, request: &RenderRequest<'_>, flat: &str) -> Option<usize> {
        let at = request.messages.iter().position(|message| message.role != Role::System)?;
        if at > 0 && request.tools.is_empty() {
            // The system message was given, and ends where the outline says.
            return None;
        }
        let mut other = request.messages[..=at].to_vec();
        let begins_so = other[at].content.trim_start().starts_with('x');
        other[at].content = if begins_so { "y" } else { "x" }.to_owned();
        other[at].tool_calls.clear();
        let other = RenderRequest { messages: &other, add_generation_prompt: false, ..*request };
        let other = self.render(tokenizer, &other).ok()?;
        let words = common(flat, &spelled(tokenizer, other.pieces()));
        if !request.tools.is_empty() {
            return Some(words);
        }
        let mut end = 0;
        let mut header = None;
        for piece in other.pieces() {
            let start = end;
            end += match piece {
                Piece::Special(id) => marked::spelling(tokenizer, *id).len(),
                Piece::Plain(text) => text.len(),
            };
            if end > words {
                break;
            }
            if matches!(piece, Piece::Special(_)) {
                header = Some(start);
            }
        }
        Some(header.unwrap_or(words))
    }
}

/// The text of pieces, special tokens spelled out.
fn spelled(tokenizer: &Tokenizer, pieces: &[Piece]) -> String {
    let mut flat = String::new();
    for piece in pieces {
        match piece {
            Piece::Special(id) => flat.push_str(marked::spelling(tokenizer, *id)),
            Piece::Plain(text) => flat.push_str(text),
        }
    }
    flat
}

fn common(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// From bytes of the text to tokens; a token over an end belongs to the message before it. An unknown end is the next
/// known one, or the text's.
fn in_tokens(tokenizer: &Tokenizer, tokens: &[u32], ends: &[Option<usize>], all: usize) -> Vec<usize> {
    let mut next = all;
    let mut known: Vec<usize> = ends
        .iter()
        .rev()
        .map(|end| {
            next = end.unwrap_or(next);
            next
        })
        .collect();
    known.reverse();
    let mut at = 0;
    let mut token = 0;
    let mut out = Vec::with_capacity(known.len());
    for end in known {
        while at < end && token < tokens.len() {
            let id = tokens[token];
            at += if tokenizer.is_special(id) {
                marked::spelling(tokenizer, id).len()
            } else {
                tokenizer.token_bytes(id).map_or(0, <[u8]>::len)
            };
            token += 1;
        }
        out.push(token);
    }
    out
}

#[cfg(test)]
mod tests {
    use hawser_common::chat::{Message, Tool};

    use super::*;
    use crate::text::testing;

    const CHAT: &str = "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|s|>assistant\n{% endif %}";

    fn outline(template: &str, first: usize) -> (Outline, Vec<String>) {
        let tokenizer = testing::tokenizer();
        let template = ChatTemplate::compile(template).unwrap();
        let say = |role, text: &str| Message::text(role, text);
        let messages = [
            say(Role::System, "be brief"),
            say(Role::User, "hello <|end|> hello"),
            say(Role::Assistant, "abc"),
            say(Role::Tool, ""),
        ];
        let request =
            RenderRequest { messages: &messages, tools: &[], add_generation_prompt: true, now_unix_s: 0 };
        let outline = template.outline(&tokenizer, &request, &[], first).unwrap();
        let starts = [0].into_iter().chain(outline.ends.iter().copied());
        let ends = outline.ends.iter().copied().chain([outline.tokens.len()]);
        let texts = starts.zip(ends).map(|(from, to)| tokenizer.decode(&outline.tokens[from..to])).collect();
        (outline, texts)
    }

    #[test]
    fn every_message_ends_where_the_next_begins() {
        let (outline, texts) = outline(CHAT, 0);
        // Decoding shows no special tokens but those that a user spelled.
        let expected = [
            "system\nbe brief\n",
            "user\nhello <|end|> hello\n",
            "assistant\nabc\n",
            "tool\n\n",
            "assistant\n",
        ];
        assert_eq!(texts, expected);
        assert_eq!(outline.first, 0);
        let (later, _) = self::outline(CHAT, 2);
        assert_eq!((later.first, &later.ends[..]), (2, &outline.ends[2..]));
        assert_eq!(later.front, outline.ends[0], "a system message is found in any conversation");
    }

    /// What of a conversation is the template's own front.
    fn preamble(template: &str, messages: &[Message], tools: &[Tool]) -> String {
        let tokenizer = testing::tokenizer();
        let template = ChatTemplate::compile(template).unwrap();
        let request = RenderRequest { messages, tools, add_generation_prompt: true, now_unix_s: 0 };
        let outline = template.outline(&tokenizer, &request, &[], 0).unwrap();
        tokenizer.decode(&outline.tokens[..outline.preamble])
    }

    #[test]
    fn what_a_template_puts_before_the_first_words_is_its_preamble() {
        let own = format!(
            "{{% if messages[0].role != 'system' %}}<|s|>system\nYou help<|end|>\n{{% endif %}}{CHAT}"
        );
        let tool =
            Tool { name: "find".to_owned(), description: "xyz".to_owned(), parameters_json: String::new() };
        let say = Message::text;
        let asked = [say(Role::User, "hello"), say(Role::Assistant, "abc"), say(Role::User, "hello")];
        assert_eq!(preamble(&own, &asked, &[]), "system\nYou help\n");
        assert_eq!(preamble(CHAT, &asked, &[]), "", "the header of a message is no system message");
        let given = [say(Role::System, "be brief"), say(Role::User, "")];
        assert_eq!(preamble(&own, &given, &[]), "", "the end of a message that was given is known");
        assert_eq!(preamble(&own, &given[..1], &[]), "");
        // Tools in a system message of their own, and in the user's message.
        let listed = "{% if tools %}<|s|>system\n{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>\n{% endif %}";
        assert_eq!(
            preamble(&format!("{listed}{CHAT}"), &asked, std::slice::from_ref(&tool)),
            "system\nfind \nuser\n"
        );
        let inside = "{% for m in messages %}<|s|>{{ m.role }}\n{% if loop.index0 == 1 and tools %}{{ tools[0].function.name }}\n{% endif %}{{ m.content }}<|end|>\n{% endfor %}";
        let words = [say(Role::System, "be brief"), say(Role::User, "hello")];
        assert_eq!(preamble(inside, &words, &[tool]), "system\nbe brief\nuser\nfind\n");
        let refuses =
            format!("{{% if messages[0].content == 'x' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{own}");
        assert_eq!(preamble(&refuses, &asked, &[]), "");
    }

    #[test]
    fn a_template_that_refuses_a_cut_joins_two_messages() {
        let picky = format!(
            "{{% if messages[-1].role == 'user' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{CHAT}"
        );
        let (outline, texts) = outline(&picky, 0);
        assert_eq!(outline.ends[1], outline.ends[2]);
        assert_eq!(texts[2], "");
        assert_eq!(texts[3], "tool\n\n");
    }
}

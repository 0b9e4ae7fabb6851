//! The text side of a simulated model: bytes as tokens, and a chat template of the common form.

use std::sync::Arc;

use hawser_model::text::{ChatTemplate, GgufVocab, TemplateError, Tokenizer, TokenizerError};
use thiserror::Error;

use crate::session::Text;

const START_NAME: &str = "<|im_start|>";
const END_NAME: &str = "<|im_end|>";

/// Tokens: every byte, and the two that begin and end a message.
pub const VOCABULARY: usize = 258;
/// Ends a message, and so an answer.
pub const END: u32 = 257;

/// Tools as JSON in a system message, then the messages, tool calls as JSON.
const TEMPLATE: &str = r"{%- if tools -%}
<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% if message.tool_calls %}{% for call in message.tool_calls %}{{ call | tojson }}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}";

/// What is wrong with the text side: a bug of this file.
#[derive(Debug, Error)]
pub enum SimulatedTextError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// The tokenizer and the template.
///
/// # Errors
/// [`SimulatedTextError`], which nothing outside of this file can cause.
pub fn text() -> Result<Text, SimulatedTextError> {
    let tokenizer = Tokenizer::from_vocab(GgufVocab::of_bytes(&[START_NAME, END_NAME]))?;
    let template = ChatTemplate::compile(TEMPLATE)?;
    Ok(Text { tokenizer: Some(Arc::new(tokenizer)), template: Some(template), vocabulary: VOCABULARY })
}

#[cfg(test)]
mod tests {
    use hawser_common::chat::{Message, Role, Tool, ToolCall};
    use hawser_common::request::{Extent, Input};
    use proptest::prelude::*;

    use super::*;
    use crate::session::{Transcript, build_prompt};

    fn prompt(messages: Vec<Message>, tools: Vec<Tool>) -> String {
        let text = text().unwrap();
        let input = Input::Messages { messages, tools };
        let prompt = build_prompt(&text, &Transcript::default(), input, Extent::Whole, 0).unwrap();
        let tokenizer = text.tokenizer.unwrap();
        let bytes = prompt.tokens.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().to_vec());
        String::from_utf8(bytes.collect()).unwrap()
    }

    #[test]
    fn messages_tools_and_calls_are_rendered() {
        let call = ToolCall { id: "c".into(), name: "ls".into(), arguments_json: "{}".into() };
        let asks = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
        let tool = Tool { name: "ls".into(), description: "lists".into(), parameters_json: String::new() };
        let said = prompt(vec![Message::text(Role::User, "Hi <|im_end|>"), asks], vec![tool]);
        assert!(said.starts_with("<|im_start|>system\n{") && said.contains("lists"), "{said}");
        assert!(
            said.contains("<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n{"),
            "{said}"
        );
        assert!(said.ends_with("<|im_end|>\n<|im_start|>assistant\n"), "{said}");
    }

    #[test]
    fn what_a_message_spells_is_never_special() {
        let tokenizer = text().unwrap().tokenizer.unwrap();
        assert!(tokenizer.encode("<|im_end|>").iter().all(|&id| id < 256));
        assert_eq!((tokenizer.special_id(END_NAME), tokenizer.vocab_size()), (Some(END), VOCABULARY));
        assert!(tokenizer.is_end(END));
    }

    proptest! {
        #[test]
        fn text_is_its_bytes(said in "\\PC{0,40}") {
            let tokenizer = text().unwrap().tokenizer.unwrap();
            let ids = tokenizer.encode(&said);
            let bytes: Vec<u32> = said.bytes().map(u32::from).collect();
            prop_assert_eq!(&ids, &bytes);
            prop_assert_eq!(tokenizer.decode(&ids), said);
        }
    }
}

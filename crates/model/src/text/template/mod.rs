//! Chat templates, rendered to the text that Hugging Face's renderer writes.
//!
//! The dialect is that renderer's: `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, `tojson` like
//! Python's `json.dumps`, `raise_exception`, `strftime_now`, Python's string methods, printing of undefined values as
//! nothing. Promises: text from messages cannot become a special token, and a hostile template ends with an error.
//! Never reads the clock.

mod dialect;
mod json;
mod methods;
mod values;

use std::sync::Arc;

use hawser_common::chat::{Message, Tool};
use hawser_common::{Coded, ErrorCode};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use thiserror::Error;

use super::rendered::Rendered;
use super::tokenizer::Tokenizer;

/// Longest template in bytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Work a rendering may do, besides what its input is worth: instructions, or 64 bytes of text each.
const FUEL: u64 = 2_000_000;

const NAME: &str = "chat";

/// Why a template cannot be used.
#[derive(Debug, Error)]
pub enum TemplateError {
    #[error("chat template has {bytes} bytes; at most {MAX_TEMPLATE_BYTES} are read")]
    TooLong { bytes: usize },
    #[error("chat template does not parse: {0}")]
    Syntax(Box<minijinja::Error>),
}

impl Coded for TemplateError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// Why messages could not be rendered.
#[derive(Debug, Error)]
pub enum RenderError {
    #[error("the model has no chat template; send token ids instead of messages")]
    NoTemplate,
    #[error("there are no messages; send at least one")]
    NoMessages,
    #[error("the chat template refuses these messages: {message}")]
    Raised { message: String },
    #[error("arguments of the call of {tool:?} in message {message} are no JSON: {detail}")]
    Arguments { message: usize, tool: String, detail: String },
    #[error("parameters of the tool {tool:?} are no JSON: {detail}")]
    Parameters { tool: String, detail: String },
    #[error("the chat template needs too much work for these messages; send fewer or shorter ones")]
    TooMuchWork,
    #[error("the chat template failed on these messages: {0}")]
    Failed(Box<minijinja::Error>),
}

impl Coded for RenderError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// What a rendering is made from.
#[derive(Clone, Copy, Debug)]
pub struct RenderRequest<'a> {
    pub messages: &'a [Message],
    /// Empty: the template is told that there are none.
    pub tools: &'a [Tool],
    /// Ends with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Seconds since the Unix epoch for `strftime_now`, shown in UTC. Within a session always the same, or the text
    /// before the new messages would change from turn to turn.
    pub now_unix_s: i64,
}

/// A compiled chat template. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
}

/// What `raise_exception` was called with.
#[derive(Debug, Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template's source.
    ///
    /// # Errors
    /// [`TemplateError`] if it is too long or does not parse.
    pub fn compile(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong { bytes: source.len() });
        }
        let syntax = |error| TemplateError::Syntax(Box::new(error));
        let mut environment = Environment::new();
        let config = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax)?;
        environment.set_syntax(config);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(methods::call);
        environment.add_filter("tojson", json::tojson);
        environment.add_filter(dialect::EACH, dialect::each);
        environment.add_function("raise_exception", raise);
        environment.add_template_owned(NAME, dialect::translate(source)).map_err(syntax)?;
        Ok(Self { environment: Arc::new(environment) })
    }

    /// Renders messages for a model.
    ///
    /// # Errors
    /// [`RenderError`]; every kind is the request's or the template's fault, and the next request works.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        request: &RenderRequest<'_>,
    ) -> Result<Rendered, RenderError> {
        if request.messages.is_empty() {
            return Err(RenderError::NoMessages);
        }
        let context = values::context(tokenizer, request)?;
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(FUEL.saturating_add(values::work(request))));
        let template = environment.get_template(NAME).map_err(failed)?;
        let output = template.render(context).map_err(failed)?;
        Ok(Rendered::from_output(tokenizer, &output))
    }
}

fn raise(message: &Value) -> Result<Value, minijinja::Error> {
    let message = message.to_string();
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn failed(error: minijinja::Error) -> RenderError {
    if error.kind() == ErrorKind::OutOfFuel {
        return RenderError::TooMuchWork;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(next) = cause {
        if let Some(Raised(message)) = next.downcast_ref::<Raised>() {
            return RenderError::Raised { message: super::marked::unguard(message).into_owned() };
        }
        cause = next.source();
    }
    RenderError::Failed(Box::new(error))
}

#[cfg(test)]
mod tests;

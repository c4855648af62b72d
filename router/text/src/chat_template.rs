//! Renders messages as one text with the model's own Jinja template.
//!
//! Templates are written for Jinja2 as transformers configures it (`apply_chat_template`). The engine here is
//! minijinja, and `environment` and `python.rs` compensate for the differences. A template comes with the model and is
//! not trusted, so its steps and its output are bounded, and it can access only its variables.

mod message;
pub(crate) mod python;
pub(crate) mod time;

use std::io;

use minijinja::value::{Kwargs, Value as Variable};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value, json};

use crate::error::TextError;
pub use message::ChatMessage;

/// Most steps of the template engine for one rendering. A message takes some tens.
const TEMPLATE_FUEL: u64 = 10_000_000;
/// Most bytes that one rendering may write.
pub const MAX_RENDERED_BYTES: usize = 64 << 20;

const DEFAULT_TEMPLATE: &str = "default";
/// Name of the template for requests with tools.
const TOOL_TEMPLATE: &str = "tool_use";
/// Variables and functions that `kwargs` may not replace.
const RESERVED_VARIABLES: [&str; 5] =
    ["messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"];

#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    pub messages: Vec<ChatMessage>,
    /// Tools as in OpenAI's API.
    pub tools: Vec<Value>,
    /// Ends the prompt with the text that opens an assistant's reply.
    pub add_generation_prompt: bool,
    /// Ends the prompt where the last message's text ends, so that the output continues it. Cannot be combined with
    /// `add_generation_prompt`.
    pub continue_final_message: bool,
    /// More variables for the template (`chat_template_kwargs`), such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// The time that `strftime_now` formats, in seconds since 1970 UTC.
    pub now_unix_s: i64,
}

/// A model's chat templates, compiled.
#[derive(Debug)]
pub struct ChatTemplates {
    environment: Environment<'static>,
    /// Names and sources in the model's order.
    sources: Vec<(String, String)>,
    /// Variables of every rendering, such as `bos_token`.
    variables: Map<String, Value>,
    /// True if the templates call the reasoning of a message `thinking`, as that of GPT-OSS does.
    has_thinking: bool,
    /// True if the templates take the arguments of a call for text, as those of DeepSeek do.
    has_text_arguments: bool,
    /// True if the templates expect the tools in the system message, as that of Phi-4-mini does.
    has_message_tools: bool,
    /// True if the templates write system messages that are not the first message.
    takes_later_system_messages: bool,
}

impl ChatTemplates {
    /// Compiles a model's templates, given as names and sources, and tries what they take. `variables`, such as
    /// `bos_token`, are available in each.
    pub fn new(sources: Vec<(String, String)>, variables: Map<String, Value>) -> Result<Self, TextError> {
        let templates = Self::compile(sources, variables)?;
        let takes_later_system_messages = templates.writes_later_system_messages();
        Ok(Self { takes_later_system_messages, ..templates })
    }

    /// Compiles templates for chats of which none is a client's.
    pub(crate) fn compile(
        sources: Vec<(String, String)>,
        variables: Map<String, Value>,
    ) -> Result<Self, TextError> {
        let mut environment = environment();
        for (name, source) in &sources {
            environment.add_template_owned(name.clone(), python::without_generation_tags(source)).map_err(
                |error| TextError::InvalidTemplate { name: name.clone(), detail: error.to_string() },
            )?;
        }
        let mentions = |name| sources.iter().any(|(_, source)| source.contains(name));
        let has_thinking = mentions("message.thinking") && !mentions("reasoning_content");
        let appends = ["'arguments'] +", "'arguments']+", "\"arguments\"] +", ".arguments +"];
        let has_text_arguments = appends.into_iter().any(mentions);
        let has_message_tools = ["message['tools']", "message[\"tools\"]"].into_iter().any(mentions);
        Ok(Self {
            environment,
            sources,
            variables,
            has_thinking,
            has_text_arguments,
            has_message_tools,
            takes_later_system_messages: true,
        })
    }

    /// Returns false if the templates refuse system messages that are not the first message, as that of Qwen3.5 does,
    /// or leave them out.
    pub fn takes_later_system_messages(&self) -> bool {
        self.takes_later_system_messages
    }

    /// Tries whether a system message is written behind another one, and in the middle of a conversation. A template
    /// that refuses the conversation without that message does not tell.
    fn writes_later_system_messages(&self) -> bool {
        let text = "later-system-message-3f0a";
        let chat = |messages: &[(&str, &str)], tools: &[Value]| ChatRequest {
            messages: messages.iter().map(|(role, text)| ChatMessage::new(*role, *text)).collect(),
            tools: tools.to_vec(),
            add_generation_prompt: true,
            ..ChatRequest::default()
        };
        let begun = [("user", "a"), ("assistant", "b"), ("system", text), ("user", "c")];
        let doubled = [("system", "a"), ("system", text), ("user", "b")];
        let tool = json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {
            "type": "object", "properties": {}}}});
        let is_written = |messages: &[(&str, &str)], tools: &[Value]| {
            let without: Vec<_> = messages.iter().copied().filter(|(_, other)| *other != text).collect();
            let written = self.render(&chat(messages, tools)).is_ok_and(|prompt| prompt.contains(text));
            written || self.render(&chat(&without, tools)).is_err()
        };
        [&[][..], &[tool]].into_iter().all(|tools| is_written(&begun, tools) && is_written(&doubled, tools))
    }

    /// Renders a conversation with `tool_use` if there are tools and the model has that template, else with `default`,
    /// else with the model's first template.
    pub fn render(&self, chat: &ChatRequest) -> Result<String, TextError> {
        let has_tools = !chat.tools.is_empty();
        let (name, _) = [has_tools.then_some(TOOL_TEMPLATE), Some(DEFAULT_TEMPLATE)]
            .into_iter()
            .flatten()
            .find_map(|wanted| self.sources.iter().find(|(name, _)| name == wanted))
            .or_else(|| self.sources.first())
            .ok_or(TextError::NoChatTemplate)?;
        let template = self.environment.get_template(name).map_err(failed)?;

        let mut output = BoundedOutput::default();
        let rendered = template.render_captured_to(self.context(chat)?, &mut output).map(drop);
        if output.is_full {
            return Err(TextError::TemplateLimit { limit: MAX_RENDERED_BYTES as u64, unit: "bytes" });
        }
        rendered.map_err(failed)?;
        String::from_utf8(output.bytes)
            .map_err(|error| TextError::TemplateFailed { detail: error.to_string() })
    }

    pub fn source(&self, name: &str) -> Option<&str> {
        self.sources.iter().find(|(known, _)| known == name).map(|(_, source)| source.as_str())
    }

    /// Iterates over the names of the templates, in the model's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    /// Returns true if the source of any template contains a character.
    pub(crate) fn contains(&self, char: char) -> bool {
        self.sources.iter().any(|(_, source)| source.contains(char))
    }

    fn context(&self, chat: &ChatRequest) -> Result<Variable, TextError> {
        if let Some(name) = chat.kwargs.keys().find(|name| RESERVED_VARIABLES.contains(&name.as_str())) {
            return Err(TextError::InvalidMessage {
                field: format!("chat_template_kwargs.{name}"),
                problem: "is set by the server and cannot be replaced".into(),
            });
        }
        let to_json =
            if self.has_thinking { ChatMessage::to_json_with_thinking } else { ChatMessage::to_json };
        let mut messages: Vec<Value> = chat.messages.iter().map(to_json).collect();
        if self.has_text_arguments {
            messages.iter_mut().for_each(message::write_arguments);
        }
        if self.has_message_tools && !chat.tools.is_empty() {
            message::add_tools(&mut messages, &chat.tools);
        }
        let now_unix_s = chat.now_unix_s;
        let own = [
            ("messages", Variable::from_serialize(messages)),
            ("tools", if chat.tools.is_empty() { ().into() } else { Variable::from_serialize(&chat.tools) }),
            ("add_generation_prompt", chat.add_generation_prompt.into()),
            ("raise_exception", Variable::from_function(raise_exception)),
            ("strftime_now", Variable::from_function(move |format: &str| time::strftime(now_unix_s, format))),
        ];
        let documents = ("documents".to_owned(), Variable::from(()));
        let given = self.variables.iter().chain(&chat.kwargs);
        Ok(std::iter::once(documents)
            .chain(given.map(|(name, value)| (name.clone(), Variable::from_serialize(value))))
            .chain(own.map(|(name, value)| (name.to_owned(), value)))
            .collect())
    }
}

/// Creates an engine that behaves like transformers' Jinja2.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| python::write(out, value));
    environment.add_test("divisibleby", is_divisible);
    environment.add_filter("indent", python::indent);
    environment.add_filter("tojson", |value: &Variable, options: Kwargs| python::to_json(value, &options));
    environment
}

/// Implements the test `divisibleby`, because the library's own panics on integers if the divisor is 0.
fn is_divisible(value: &Variable, by: &Variable) -> Result<bool, minijinja::Error> {
    let (Ok(dividend), Ok(divisor)) = (i128::try_from(value.clone()), i128::try_from(by.clone())) else {
        return Ok(minijinja::tests::is_divisibleby(value, by));
    };
    if divisor == 0 {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "division by zero"));
    }
    // Dividing the smallest integer by -1 overflows.
    Ok(dividend.checked_rem(divisor).unwrap_or(0) == 0)
}

/// The message of a template that calls `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: &Variable) -> Result<Variable, minijinja::Error> {
    let refusal = Refusal(message.to_string());
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(refusal))
}

fn failed(error: minijinja::Error) -> TextError {
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return TextError::TemplateRefused { message: message.clone() };
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateLimit { limit: TEMPLATE_FUEL, unit: "steps" };
    }
    TextError::TemplateFailed { detail: error.to_string() }
}

/// The output of a rendering, up to its limit.
#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_RENDERED_BYTES - self.bytes.len() {
            self.is_full = true;
            return Err(io::Error::other("output is full"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

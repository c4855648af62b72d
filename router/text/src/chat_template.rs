//! Chat templates: messages to one text, as the model's own Jinja template says.

use serde_json::{Map, Value};

use crate::TextError;

/// Most steps of the template engine for one rendering.
pub const TEMPLATE_FUEL: u64 = 10_000_000;
/// Most bytes that one rendering may write.
pub const MAX_RENDERED_BYTES: usize = 64 << 20;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool`, ...; the template decides which it takes.
    pub role: String,
    /// Its text; `None` for an assistant's message of tool calls alone.
    pub content: Option<String>,
    /// Other fields that templates know (`name`, `tool_calls`, `tool_call_id`, `reasoning_content`), as sent.
    pub extra: Map<String, Value>,
}

impl ChatMessage {
    /// A message of role and text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }

    /// From a message in OpenAI's form; `idx` names it in errors (`messages[idx]`).
    pub fn from_json(_idx: usize, _message: &Value) -> Result<Self, TextError> {
        unimplemented!()
    }
}

/// The text of a message's content: a string, or a list of text parts, whose texts are joined. Null and absent give
/// `None`. `field` names it in errors.
pub fn flatten_content(_field: &str, _content: &Value) -> Result<Option<String>, TextError> {
    unimplemented!()
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The conversation, oldest first.
    pub messages: Vec<ChatMessage>,
    /// Tools in OpenAI's form; empty for none.
    pub tools: Vec<Value>,
    /// End with the words that open an assistant's reply.
    pub add_generation_prompt: bool,
    /// More variables for the template (`chat_template_kwargs`, e.g. `enable_thinking`).
    pub kwargs: Map<String, Value>,
    /// The time for `strftime_now`, in seconds since 1970 UTC.
    pub now_unix_s: i64,
}

/// A model's chat templates, compiled.
#[derive(Debug)]
pub struct ChatTemplates {}

impl ChatTemplates {
    /// Renders the conversation: the template `tool_use` if there are tools and the model has one, else `default`.
    pub fn render(&self, _chat: &ChatRequest) -> Result<String, TextError> {
        unimplemented!()
    }

    /// The template's source by name.
    pub fn source(&self, _name: &str) -> Option<&str> {
        unimplemented!()
    }
}

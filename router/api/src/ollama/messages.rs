//! The messages of a chat.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Map, Value};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use crate::chat::arguments::ArgumentsReader;
use crate::lists::Listed;
use crate::openai::CallField;
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_MESSAGES;

/// The hint for images.
pub(super) const READS_TEXT: &str = "this server reads only text";

/// A message of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaMessage)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`. The reply continues a last message of the assistant, unless it has
    /// calls.
    pub role: String,
    /// The text of the message.
    #[schema(default = "")]
    pub content: Option<String>,
    /// The reasoning of an assistant's message. The chat template decides whether the prompt includes it.
    pub thinking: Option<String>,
    /// Images, which are refused.
    #[schema(ignore)]
    pub images: Option<Value>,
    /// The tool calls of an assistant's message: `[{"function": {"name", "arguments"}}]`, with or without `id`.
    pub tool_calls: Option<Vec<CallField>>,
    /// The tool whose result a message of role `tool` is.
    pub tool_name: Option<String>,
    /// The id of the call that a message of role `tool` answers; by default the first call of the last assistant's
    /// message, and of `tool_name`, that has no result yet.
    pub tool_call_id: Option<String>,
}

impl Listed for Message {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "messages";
}

/// Converts the messages to the form that templates render.
pub(super) fn to_chat(messages: Vec<Message>) -> Result<Vec<ChatMessage>, ApiError> {
    let mut calls = Calls::default();
    messages.into_iter().enumerate().map(|(idx, message)| calls.convert(idx, message)).collect()
}

/// The calls of a conversation.
#[derive(Default)]
struct Calls {
    reader: ArgumentsReader,
    /// The number of calls so far, from which ids are made that stay the same in each turn of a conversation.
    num_calls: usize,
    /// Names and ids of the last message's calls that have no result yet.
    open: VecDeque<(String, String)>,
}

impl Calls {
    fn convert(&mut self, idx: usize, message: Message) -> Result<ChatMessage, ApiError> {
        let field = |name: &str| format!("messages[{idx}].{name}");
        let role = match message.role.to_ascii_lowercase().as_str() {
            "system" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" => "tool",
            _ => {
                return Err(ApiError::value(
                    field("role"),
                    "must be `system`, `user`, `assistant` or `tool`",
                ));
            }
        };
        if message.images.is_some_and(|images| images.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(ApiError::UnsupportedField { field: field("images"), hint: READS_TEXT });
        }
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() && role != "assistant" {
            return Err(ApiError::value(field("tool_calls"), "are only allowed with role `assistant`"));
        }
        let mut extra = Map::new();
        if role == "tool" {
            let (name, id) = self.answered(message.tool_name, message.tool_call_id);
            let texts = [("name", name), ("tool_call_id", id)].into_iter();
            extra.extend(texts.filter_map(|(key, text)| Some((key.to_owned(), Value::String(text?)))));
        }
        if let Some(thinking) = message.thinking.filter(|text| !text.is_empty()) {
            extra.insert("reasoning_content".into(), thinking.into());
        }
        if !calls.is_empty() {
            self.open.clear();
            extra.insert("tool_calls".into(), calls.into_iter().map(|call| self.begin(call)).collect());
        }
        Ok(ChatMessage { role: role.into(), content: Some(message.content.unwrap_or_default()), extra })
    }

    /// Converts a call, which then is open.
    fn begin(&mut self, call: CallField) -> Value {
        let name = call.function.name.clone();
        let id = call.id.clone().unwrap_or_else(|| format!("call_{}", self.num_calls));
        self.num_calls += 1;
        self.open.push_back((name, id.clone()));
        CallField { id: Some(id), ..call }.into_json(&mut self.reader)
    }

    /// Returns the name and the id of the call that a result answers, as far as they are known.
    fn answered(&mut self, name: Option<String>, id: Option<String>) -> (Option<String>, Option<String>) {
        let is_answered = |(known_name, known_id): &(String, String)| match (&id, &name) {
            (Some(id), _) => known_id == id,
            (None, Some(name)) => known_name == name,
            (None, None) => true,
        };
        let answered = self.open.iter().position(is_answered).and_then(|at| self.open.remove(at));
        let (known_name, known_id) = answered.unzip();
        (name.or(known_name), id.or(known_id))
    }
}

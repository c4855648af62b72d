//! The messages of a chat.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use crate::chat::arguments::{Arguments, ArgumentsReader};
use crate::chat::prompt::Mark;
use crate::lists::{Listed, TextOrList};
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_MESSAGE_PARTS, MAX_MESSAGES};
use trunkline_generation::request::retention::CacheControl;

/// A string, or a list of text parts.
pub type Content = TextOrList<Part>;

/// A message of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
pub struct Message {
    /// `system`, `developer` (a synonym of `system`), `user`, `assistant` or `tool`. `function` is refused: use `tool`.
    pub role: String,
    /// A string, or at most 1024 parts `{"type": "text", "text": ...}`, which are joined. Other types of parts are
    /// refused, and images, audio, videos and files by name.
    pub content: Option<Content>,
    /// The name of the speaker, for chat templates that use it.
    pub name: Option<String>,
    /// The tool calls of an assistant's message, as returned in the response. `content` may then be null.
    pub tool_calls: Option<Vec<CallField>>,
    /// The id of the call that a message of role `tool` answers, which requires it.
    pub tool_call_id: Option<String>,
    /// The reasoning of an assistant's message. The chat template decides whether the prompt includes it.
    pub reasoning_content: Option<String>,
    /// Another name of `reasoning_content`, which counts if both are present.
    pub reasoning: Option<String>,
}

impl Listed for Message {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "messages";
}

/// A tool call in an assistant's message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatMessageToolCall)]
pub struct CallField {
    /// The id of the call.
    pub id: Option<String>,
    /// The function and its arguments.
    pub function: CalledField,
}

/// A called function with its arguments.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatMessageFunctionCall)]
pub struct CalledField {
    /// The name of the function.
    pub name: String,
    /// The arguments, as JSON text or as an object.
    pub arguments: Option<Arguments>,
}

impl CallField {
    /// Converts the call to the form that templates expect, with arguments as an object if they are one.
    pub(crate) fn into_json(self, reader: &mut ArgumentsReader) -> Value {
        let arguments =
            self.function.arguments.map_or_else(|| json!({}), |arguments| reader.to_json(arguments));
        let mut call =
            json!({"type": "function", "function": {"name": self.function.name, "arguments": arguments}});
        if let Some(id) = self.id {
            call["id"] = Value::String(id);
        }
        call
    }
}

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[schema(as = ChatMessagePart)]
pub struct Part {
    /// `text`, or an assistant's `refusal`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    pub text: Option<String>,
    /// The text of a `refusal` part.
    pub refusal: Option<String>,
    /// Pins the prompt up to the end of the last part that has one, for `5m`, the default, or `1h`: `{"type":
    /// "ephemeral", "ttl": "5m"}`. Part of Anthropic's API, not of OpenAI's.
    pub cache_control: Option<CacheControl>,
}

impl Listed for Part {
    const LIMIT: usize = MAX_MESSAGE_PARTS;
    const NAMES: &'static str = "parts";
}

impl Part {
    /// Returns the name and the value of the field that its type has, or `None` for an unknown type.
    fn text(&self) -> Option<(&'static str, Option<&str>)> {
        match self.kind.as_str() {
            "text" => Some(("text", self.text.as_deref())),
            "refusal" => Some(("refusal", self.refusal.as_deref())),
            _ => None,
        }
    }
}

impl Message {
    /// Returns the number of content parts; a string counts as none.
    pub fn num_parts(&self) -> usize {
        self.content.as_ref().map_or(0, TextOrList::num_listed)
    }
}

/// Returns the position of the last `cache_control`, if any part has one.
pub fn last_mark(messages: &[Message]) -> Result<Option<Mark>, ApiError> {
    let mut last = None;
    for (message_idx, message) in messages.iter().enumerate() {
        let Some(TextOrList::List(parts)) = &message.content else { continue };
        let mut num_bytes = 0;
        for (part_idx, part) in parts.iter().enumerate() {
            num_bytes += part.text().and_then(|(_, text)| text).map_or(0, str::len);
            if let Some(control) = &part.cache_control {
                let field = format!("messages[{message_idx}].content[{part_idx}].cache_control");
                last = Some(Mark { message_idx, num_bytes, ttl_s: control.ttl_s(&field)? });
            }
        }
    }
    Ok(last)
}

/// Converts the messages to the form that templates render.
pub fn to_chat(messages: Vec<Message>) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::value("messages", "is empty; hint: send at least one message"));
    }
    let mut reader = ArgumentsReader::default();
    messages
        .into_iter()
        .enumerate()
        .map(|(idx, message)| to_chat_message(idx, message, &mut reader))
        .collect()
}

fn to_chat_message(
    idx: usize,
    message: Message,
    reader: &mut ArgumentsReader,
) -> Result<ChatMessage, ApiError> {
    let field = |name: &str| format!("messages[{idx}].{name}");
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        _ => {
            return Err(ApiError::value(
                field("role"),
                "must be `system`, `developer`, `user`, `assistant` or `tool`",
            ));
        }
    };
    let calls = message.tool_calls.unwrap_or_default();
    if !calls.is_empty() && role != "assistant" {
        return Err(ApiError::value(field("tool_calls"), "are only allowed with role `assistant`"));
    }
    if role == "tool" && message.tool_call_id.is_none() {
        return Err(ApiError::MissingField { field: field("tool_call_id") });
    }
    let content = match message.content {
        Some(TextOrList::Text(text)) => text,
        Some(TextOrList::List(parts)) => join(idx, &parts)?,
        // The reply was empty, or it consisted of calls or reasoning only.
        None if role == "assistant" => String::new(),
        None => return Err(ApiError::MissingField { field: field("content") }),
    };
    let mut extra = Map::new();
    let others = [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content.or(message.reasoning)),
    ];
    for (name, text) in others {
        extra.extend(text.map(|text| (name.to_owned(), Value::String(text))));
    }
    if !calls.is_empty() {
        extra.insert("tool_calls".into(), calls.into_iter().map(|call| call.into_json(reader)).collect());
    }
    Ok(ChatMessage { role: role.into(), content: Some(content), extra })
}

fn join(idx: usize, parts: &[Part]) -> Result<String, ApiError> {
    let mut joined = String::new();
    for (part_idx, part) in parts.iter().enumerate() {
        let field = |name: &str| format!("messages[{idx}].content[{part_idx}].{name}");
        let unknown = || ApiError::part_type(field("type"), &part.kind, "must be `text` or `refusal`");
        let (name, text) = part.text().ok_or_else(unknown)?;
        joined.push_str(text.ok_or_else(|| ApiError::MissingField { field: field(name) })?);
    }
    Ok(joined)
}

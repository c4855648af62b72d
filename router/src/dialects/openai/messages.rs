//! The messages of a chat.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use crate::dialects::chat_prompt::Mark;
use crate::error::ApiError;
use crate::limits::{MAX_MESSAGES, MAX_PARTS};
use crate::retention::CacheControl;

/// One message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
pub struct Message {
    /// `system`, `developer` (the same), `user` or `assistant`.
    pub role: String,
    /// A string, or a list of text parts, which are joined.
    #[schema(value_type = Option<String>)]
    pub content: Option<Content>,
    /// Name of the speaker, for templates that know it.
    pub name: Option<String>,
    /// Not supported yet; refused unless empty.
    #[schema(ignore)]
    pub tool_calls: Option<serde::de::IgnoredAny>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts.
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Part {
    /// Only `text` is supported.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    pub text: Option<String>,
    /// What stands before the end of this part is to be kept: Anthropic's field.
    pub cache_control: Option<CacheControl>,
}

/// The last `cache_control` of the messages.
pub fn last_mark(messages: &[Message]) -> Result<Option<Mark>, ApiError> {
    let mut last = None;
    for (message_idx, message) in messages.iter().enumerate() {
        let Some(Content::Parts(parts)) = &message.content else { continue };
        let mut num_bytes = 0;
        for (part_idx, part) in parts.iter().enumerate() {
            num_bytes += part.text.as_ref().map_or(0, String::len);
            if let Some(control) = &part.cache_control {
                let field = format!("messages[{message_idx}].content[{part_idx}].cache_control");
                last = Some(Mark { message_idx, num_bytes, ttl_s: control.ttl_s(&field)? });
            }
        }
    }
    Ok(last)
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or a list of parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Content, A::Error> {
        bounded(list, MAX_PARTS, "at most 1024 parts").map(Content::Parts)
    }
}

/// For `#[serde(deserialize_with)]`: a list of messages, bounded.
pub fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Message>, D::Error> {
    struct Messages;
    impl<'de> Visitor<'de> for Messages {
        type Value = Vec<Message>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list of messages")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<Message>, A::Error> {
            bounded(list, MAX_MESSAGES, "at most 16384 messages")
        }
    }
    deserializer.deserialize_seq(Messages)
}

/// A list of at most so many.
pub fn bounded<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
    limit: usize,
    expected: &'static str,
) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while let Some(item) = list.next_element()? {
        if items.len() == limit {
            return Err(Error::invalid_length(limit + 1, &expected));
        }
        items.push(item);
    }
    Ok(items)
}

/// The messages as templates take them.
pub fn to_chat(messages: Vec<Message>) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::value("messages", "is empty; hint: send at least one message"));
    }
    messages.into_iter().enumerate().map(|(idx, message)| to_chat_message(idx, message)).collect()
}

fn to_chat_message(idx: usize, message: Message) -> Result<ChatMessage, ApiError> {
    let field = |name: &str| format!("messages[{idx}].{name}");
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" | "function" => {
            return Err(ApiError::value(field("role"), "is a tool's; tools are not supported yet"));
        }
        _ => {
            return Err(ApiError::value(
                field("role"),
                "must be `system`, `developer`, `user` or `assistant`",
            ));
        }
    };
    if message.tool_calls.is_some() {
        return Err(ApiError::UnsupportedField { field: field("tool_calls"), hint: "leave it out" });
    }
    let content = match message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => join(idx, parts)?,
        None => return Err(ApiError::MissingField { field: field("content") }),
    };
    let mut extra = Map::new();
    if let Some(name) = message.name {
        extra.insert("name".into(), Value::String(name));
    }
    Ok(ChatMessage { role: role.into(), content: Some(content), extra })
}

fn join(idx: usize, parts: Vec<Part>) -> Result<String, ApiError> {
    let mut joined = String::new();
    for (part_idx, part) in parts.into_iter().enumerate() {
        let field = |name: &str| format!("messages[{idx}].content[{part_idx}].{name}");
        if part.kind != "text" {
            let problem = "is not `text`; this server takes text alone";
            return Err(ApiError::value(field("type"), problem));
        }
        let text = part.text.ok_or_else(|| ApiError::MissingField { field: field("text") })?;
        joined.push_str(&text);
    }
    Ok(joined)
}

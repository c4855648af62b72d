//! Messages of a chat, in the form that templates expect.

use serde_json::{Map, Value, json};

use super::python;
use crate::error::TextError;

#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or another role that the template supports.
    pub role: String,
    /// The text of the message. `None`, for an assistant's message that has only tool calls, is an empty string to a
    /// template.
    pub content: Option<String>,
    /// Other fields as sent, such as `name`, `tool_calls`, `tool_call_id` and `reasoning_content`.
    pub extra: Map<String, Value>,
}

impl ChatMessage {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }

    /// Reads a message of OpenAI's API. Errors name it `messages[idx]`.
    ///
    /// The arguments of tool calls, which are JSON in a string, are parsed, because templates expect an object.
    pub fn from_json(idx: usize, message: &Value) -> Result<Self, TextError> {
        let invalid =
            |field: String, problem: &str| Err(TextError::InvalidMessage { field, problem: problem.into() });
        let Some(fields) = message.as_object() else {
            return invalid(format!("messages[{idx}]"), "is not an object");
        };
        let role = match fields.get("role") {
            Some(Value::String(role)) => role.clone(),
            Some(_) => return invalid(format!("messages[{idx}].role"), "is not a string"),
            None => return invalid(format!("messages[{idx}].role"), "is missing"),
        };
        let content = match fields.get("content") {
            Some(content) => flatten_content(&format!("messages[{idx}].content"), content)?,
            None => None,
        };
        let mut extra: Map<String, Value> = fields
            .iter()
            .filter(|(name, value)| !matches!(name.as_str(), "role" | "content") && !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if let Some(Value::Array(calls)) = extra.get_mut("tool_calls") {
            calls.iter_mut().for_each(parse_arguments);
        }
        Ok(Self { role, content, extra })
    }

    /// Returns the message as a template's variable.
    pub fn to_json(&self) -> Value {
        let own = [("role", self.role.clone()), ("content", self.content.clone().unwrap_or_default())];
        let own = own.into_iter().map(|(name, text)| (name.to_owned(), Value::String(text)));
        Value::Object(own.chain(self.extra.clone()).collect())
    }

    /// Returns the message with its `reasoning_content` as `thinking`, for templates that know only this name. They
    /// refuse it beside text in a message with tool calls, which then has none.
    pub(super) fn to_json_with_thinking(&self) -> Value {
        let mut message = self.to_json();
        let has_text = self.content.as_ref().is_some_and(|text| !text.is_empty());
        let is_refused = has_text && self.extra.contains_key("tool_calls");
        if let Some(reasoning) = self.extra.get("reasoning_content").filter(|_| !is_refused)
            && !self.extra.contains_key("thinking")
        {
            message["thinking"] = reasoning.clone();
        }
        message
    }
}

/// Parses a tool call's arguments in place. A string that is not a JSON object is unchanged.
fn parse_arguments(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(text) = arguments.as_str()
        && let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text)
    {
        *arguments = parsed;
    }
}

/// Writes the arguments of a message's calls as JSON text.
pub(super) fn write_arguments(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments @ Value::Object(_)) = call.pointer_mut("/function/arguments") {
            *arguments = Value::String(python::json(arguments));
        }
    }
}

/// Adds the tools to the system message as JSON text, in the form of the model card of Phi-4-mini. Without a system
/// message, there is one in the card's words.
pub(super) fn add_tools(messages: &mut Vec<Value>, tools: &[Value]) {
    if messages.first().is_none_or(|first| first["role"] != "system") {
        let content = "You are a helpful assistant with some tools.";
        messages.insert(0, json!({"role": "system", "content": content}));
    }
    let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone());
    messages[0]["tools"] = Value::String(python::json(&Value::Array(functions.collect())));
}

/// Returns the text of a message's content, which is a string or a list of text parts to concatenate. Returns `None`
/// for null. `field` is the content's name in errors.
fn flatten_content(field: &str, content: &Value) -> Result<Option<String>, TextError> {
    let invalid = |field: String, problem: String| Err(TextError::InvalidMessage { field, problem });
    let parts = match content {
        Value::Null => return Ok(None),
        Value::String(text) => return Ok(Some(text.clone())),
        Value::Array(parts) => parts,
        _ => return invalid(field.into(), "is neither a string nor a list of parts".into()),
    };
    let mut out = String::new();
    for (idx, part) in parts.iter().enumerate() {
        match part.get("type").and_then(Value::as_str) {
            Some("text") => {}
            Some(other) => {
                let problem = format!("is `{}`, but only `text` is supported", shortened(other));
                return invalid(format!("{field}[{idx}].type"), problem);
            }
            None => return invalid(format!("{field}[{idx}].type"), "is missing or not a string".into()),
        }
        match part.get("text").and_then(Value::as_str) {
            Some(text) => out.push_str(text),
            None => return invalid(format!("{field}[{idx}].text"), "is missing or not a string".into()),
        }
    }
    Ok(Some(out))
}

/// Shortens a client's string for an error.
fn shortened(text: &str) -> &str {
    const MAX_CHARS: usize = 40;
    text.char_indices().nth(MAX_CHARS).map_or(text, |(at, _)| &text[..at])
}

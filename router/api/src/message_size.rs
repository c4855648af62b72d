//! The sizes of messages and of JSON values: of the text that a template renders, and of their memory.

use std::ops::AddAssign;

use serde_json::{Map, Value};
use trunkline_text::ChatMessage;

/// The least bytes that a template renders for a message, or for an element of JSON.
pub const MIN_RENDERED_BYTES: usize = 4;
/// The approximate memory of an object's member without its name's text and its value's own memory.
const MEMBER_BYTES: usize = size_of::<Value>() + size_of::<String>() + 32;
/// The items for which a list or an object has room at least.
const MIN_ITEMS: usize = 4;

/// The size of some messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    pub num_messages: usize,
    /// The approximate size of the text that a template renders.
    pub num_text_bytes: usize,
    /// The approximate memory of the messages, their JSON values included.
    pub num_bytes: usize,
}

impl Size {
    pub fn of(message: &ChatMessage) -> Self {
        Self { num_messages: 1, num_text_bytes: message_bytes(message), num_bytes: memory_bytes(message) }
    }
}

impl AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.num_messages += other.num_messages;
        self.num_text_bytes += other.num_text_bytes;
        self.num_bytes += other.num_bytes;
    }
}

/// Returns the approximate size in bytes of the text that a template renders for a message.
pub fn message_bytes(message: &ChatMessage) -> usize {
    let content = message.content.as_ref().map_or(0, String::len);
    MIN_RENDERED_BYTES + message.role.len() + content + fields_bytes(&message.extra)
}

/// Returns the approximate size in bytes of the text of an object's members.
pub fn fields_bytes(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| name.len() + json_bytes(value)).sum()
}

/// Returns the approximate size in bytes of the text of a value.
pub fn json_bytes(value: &Value) -> usize {
    MIN_RENDERED_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(json_bytes).sum(),
            Value::Object(fields) => fields_bytes(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Returns the memory of a message, its JSON values included.
fn memory_bytes(message: &ChatMessage) -> usize {
    size_of::<ChatMessage>()
        + message.role.len()
        + message.content.as_ref().map_or(0, String::len)
        + map_bytes(&message.extra)
}

fn map_bytes(map: &Map<String, Value>) -> usize {
    map.iter().map(|(name, value)| MEMBER_BYTES + name.len() + heap_bytes(value)).sum()
}

/// Returns the memory that a value holds beside its own size.
fn heap_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => {
            items.len().max(MIN_ITEMS) * size_of::<Value>() + items.iter().map(heap_bytes).sum::<usize>()
        }
        Value::Object(map) => MIN_ITEMS * MEMBER_BYTES + map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

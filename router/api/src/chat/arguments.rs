//! The arguments of a tool call in a conversation's history.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::forms::one_of;
use crate::message_size::fields_bytes;
use trunkline_base::limits::MAX_JSON_VALUES;
use trunkline_http::num_values;

/// The arguments of a call. OpenAI's clients send JSON text; some others send the object itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Arguments {
    /// JSON text. It may be invalid, because a model wrote it.
    Text(String),
    Object(Map<String, Value>),
}

impl Arguments {
    /// Returns the approximate size in bytes of the text that a template renders.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Object(object) => fields_bytes(object),
        }
    }
}

/// Converts the calls of one conversation. The JSON in their texts has at most [`MAX_JSON_VALUES`] values in total,
/// because it did not count as such in the body.
#[derive(Debug, Default)]
pub struct ArgumentsReader {
    num_values: usize,
}

impl ArgumentsReader {
    /// Converts the arguments to the form that templates expect: an object if they are one, otherwise the text. Empty
    /// text and null become an empty object, because clients send them for tools without parameters. Text that would
    /// exceed the limit stays text.
    pub fn to_json(&mut self, arguments: Arguments) -> Value {
        let text = match arguments {
            Arguments::Text(text) => text,
            Arguments::Object(object) => return Value::Object(object),
        };
        if text.trim().is_empty() {
            return Value::Object(Map::new());
        }
        self.num_values = self.num_values.saturating_add(num_values(&text));
        if self.num_values > MAX_JSON_VALUES {
            return Value::String(text);
        }
        match serde_json::from_str(&text) {
            Ok(object @ Value::Object(_)) => object,
            Ok(Value::Null) => Value::Object(Map::new()),
            Ok(_) | Err(_) => Value::String(text),
        }
    }
}

impl PartialSchema for Arguments {
    fn schema() -> RefOr<Schema> {
        one_of([String::schema(), Object::new().into()])
    }
}

impl ToSchema for Arguments {
    fn name() -> Cow<'static, str> {
        "CallArguments".into()
    }
}

//! The arguments of a tool call in a conversation's history.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::api::forms::one_of;

/// The arguments of a call. OpenAI's clients send JSON text; some others send the object itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Arguments {
    /// JSON text. It may be invalid, because a model wrote it.
    Text(String),
    Object(Map<String, Value>),
}

impl Arguments {
    /// Converts the arguments to the form that templates expect: an object if they are one, otherwise the text. Empty
    /// text and null become an empty object, because clients send them for tools without parameters.
    pub fn into_json(self) -> Value {
        let text = match self {
            Self::Text(text) => text,
            Self::Object(object) => return Value::Object(object),
        };
        if text.trim().is_empty() {
            return Value::Object(Map::new());
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

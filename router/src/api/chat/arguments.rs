//! The arguments of a call in a conversation's history.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::api::forms::one_of;

/// OpenAI sends them as JSON text; other clients as the object that it says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Arguments {
    /// JSON text, or what a model made of it.
    Text(String),
    /// The object.
    Object(Map<String, Value>),
}

impl Arguments {
    /// As templates take them: an object where they are one. Clients send nothing, or null, for a tool without any.
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

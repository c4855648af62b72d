//! The field `think`, which asks for reasoning.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::chat::conversation::reasoning_kwargs;
use crate::forms::one_of;
use trunkline_base::error::ApiError;
use trunkline_generation::model::ReplyStyle;

/// True, false or the effort of the reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    Switch(bool),
    Effort(&'static str),
}

const EFFORTS: [&str; 4] = ["low", "medium", "high", "max"];

impl Think {
    /// Returns true if the model is to reason.
    pub(super) fn is_on(self) -> bool {
        self != Self::Switch(false)
    }

    /// Refuses to reason with a model that does not.
    pub(super) fn check(asked: Option<Self>, style: ReplyStyle) -> Result<(), ApiError> {
        if style.reasons || !asked.is_some_and(Self::is_on) {
            return Ok(());
        }
        Err(ApiError::value(
            "think",
            "asks for reasoning, which this model does not have; hint: leave it out",
        ))
    }

    /// Returns the variables for the chat template.
    pub(super) fn kwargs(asked: Option<Self>, style: ReplyStyle) -> Map<String, Value> {
        match asked {
            Some(Self::Switch(thinks)) if style.reasons => {
                Map::from_iter([("enable_thinking".to_owned(), thinks.into())])
            }
            Some(Self::Effort(effort)) => reasoning_kwargs(Some(effort)),
            None | Some(Self::Switch(_)) => Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ThinkVisitor)
    }
}

struct ThinkVisitor;

impl Visitor<'_> for ThinkVisitor {
    type Value = Think;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("true, false, `low`, `medium`, `high` or `max`")
    }

    fn visit_bool<E: Error>(self, thinks: bool) -> Result<Think, E> {
        Ok(Think::Switch(thinks))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Think, E> {
        let effort = EFFORTS.into_iter().find(|effort| *effort == text).map(Think::Effort);
        effort.ok_or_else(|| E::invalid_value(Unexpected::Other("another text"), &self))
    }
}

impl PartialSchema for Think {
    fn schema() -> RefOr<Schema> {
        one_of([bool::schema(), String::schema()])
    }
}

impl ToSchema for Think {
    fn name() -> Cow<'static, str> {
        "OllamaThink".into()
    }
}

//! Parses a JSON body into a dialect's type. Errors name the field. Unsupported fields that would change the output are
//! refused by name.

use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json_error::describe;
use crate::error::ApiError;

/// The longest value of a refused field that is compared with the neutral values, in bytes.
const MAX_NEUTRAL_BYTES: usize = 256;

/// An unsupported field that would change the output. It is accepted with a value that changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    pub field: &'static str,
    /// JSON texts of the values that change nothing. `null` is always accepted.
    pub neutral: &'static [&'static str],
    /// The hint in the error, without `hint:`.
    pub hint: &'static str,
}

/// Parses `body`. `prefix` is the object's path in errors, such as `parameters.`; it is empty at the top level.
pub fn parse<T: DeserializeOwned>(body: &[u8], refused: &[Refused], prefix: &str) -> Result<T, ApiError> {
    check_fields(body, refused, prefix)?;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let detail = describe(&inner);
        let parent = match path.as_str() {
            "." | "" => prefix.to_owned(),
            path => format!("{prefix}{path}."),
        };
        // serde reports these two at the object, but its text names the field.
        if let Some(name) = field_after("missing field `", &detail) {
            return ApiError::MissingField { field: format!("{parent}{name}") };
        }
        if let Some(name) = field_after("duplicate field `", &detail) {
            return ApiError::InvalidType { field: format!("{parent}{name}"), detail: "occurs twice".into() };
        }
        match parent.strip_suffix('.') {
            Some(field) => ApiError::InvalidType { field: field.to_owned(), detail },
            None if inner.is_data() => ApiError::InvalidBody { detail },
            None => ApiError::InvalidJson { detail },
        }
    })
}

/// Returns the field that one of serde's errors names after `start`. The name is from our types, never from the client.
fn field_after<'a>(start: &str, detail: &'a str) -> Option<&'a str> {
    detail.strip_prefix(start)?.split('`').next()
}

/// Checks that `body` is one JSON object without refused fields.
fn check_fields(body: &[u8], refused: &[Refused], prefix: &str) -> Result<(), ApiError> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer
        .deserialize_map(Fields { refused, found: &mut found })
        .and_then(|()| deserializer.end())
        .map_err(|error| {
            let detail = describe(&error);
            match prefix.strip_suffix('.') {
                _ if !error.is_data() => ApiError::InvalidJson { detail },
                Some(field) => ApiError::InvalidType { field: field.to_owned(), detail },
                None => ApiError::InvalidBody { detail },
            }
        })?;
    match found {
        Some(Refused { field, hint, .. }) => {
            Err(ApiError::UnsupportedField { field: format!("{prefix}{field}"), hint })
        }
        None => Ok(()),
    }
}

struct Fields<'a> {
    refused: &'a [Refused],
    found: &'a mut Option<Refused>,
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.refused.iter().find(|refused| refused.field == key) {
                Some(refused) => {
                    let value: &RawValue = map.next_value()?;
                    if self.found.is_none() && !is_neutral(value.get(), refused.neutral) {
                        *self.found = Some(*refused);
                    }
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn is_neutral(value: &str, neutral: &[&str]) -> bool {
    if value.len() > MAX_NEUTRAL_BYTES {
        return false;
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    match parse(value) {
        Some(Value::Null) => true,
        Some(value) => neutral.iter().any(|text| parse(text).as_ref() == Some(&value)),
        None => false,
    }
}

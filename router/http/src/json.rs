//! Parses a JSON body into a dialect's type. Errors name the field. Unsupported fields that would change the output are
//! refused by name.

use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::ignored::IgnoredFields;
use super::json_error::describe;
use super::known_fields::known_fields;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{JSON_ITEM_BYTES, JSON_VALUE_BYTES, MAX_JSON_VALUES};

/// The longest value of a refused field that is compared with the neutral values, in bytes.
const MAX_NEUTRAL_BYTES: usize = 256;
/// The most characters of a client's own field name in an error.
const MAX_SHOWN_CHARS: usize = 64;
/// The most unknown fields that are noted.
const MAX_UNKNOWN: usize = 16;
/// Lists of token ids, whose items do not count as JSON values. They may be as long as a context or a vocabulary, and
/// they are parsed into plain numbers.
const TOKEN_LISTS: [&str; 3] = ["prompt", "allowed_token_ids", "tokens"];

/// An unsupported field that would change the output. It is accepted with a value that changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    pub field: &'static str,
    /// JSON texts of the values that change nothing. `null` is always accepted.
    pub neutral: &'static [&'static str],
    /// The hint in the error, without `hint:`.
    pub hint: &'static str,
}

/// Fields that the type of a body does not have, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub struct OtherFields<'a> {
    pub refused: &'a [Refused],
    /// Fields that are accepted without a word, because they do not change the answer.
    pub harmless: &'a [&'static str],
}

/// Parses `body`. `prefix` is the object's path in errors, such as `parameters.`; it is empty at the top level.
pub fn parse<T: DeserializeOwned>(body: &[u8], refused: &[Refused], prefix: &str) -> Result<T, ApiError> {
    parse_noting(body, OtherFields { refused, harmless: &[] }, prefix, &mut IgnoredFields::default())
}

/// Parses `body` as [`parse`] does, and notes fields that are unknown.
pub fn parse_noting<T: DeserializeOwned>(
    body: &[u8],
    others: OtherFields<'_>,
    prefix: &str,
    ignored: &mut IgnoredFields,
) -> Result<T, ApiError> {
    let found = check_fields(body, others, known_fields::<T>(), prefix)?;
    found.iter().for_each(|name| ignored.note(&format!("{prefix}{name}")));
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

/// Returns the number of values in a valid JSON text. An empty list or object counts as two.
pub fn num_values(json: &str) -> usize {
    let mut strings = Strings::default();
    1 + json.bytes().filter(|&byte| !strings.has(byte) && matches!(byte, b',' | b'[' | b'{')).count()
}

/// The memory of a JSON text's values once it is parsed, at most, without that of its strings.
#[derive(Default)]
pub(crate) struct ParsedSize {
    pub num_bytes: usize,
    strings: Strings,
}

impl ParsedSize {
    /// Adds the next piece of the text.
    pub fn add(&mut self, piece: &[u8]) {
        for &byte in piece {
            self.num_bytes += match byte {
                _ if self.strings.has(byte) => 0,
                b'[' | b'{' | b':' => JSON_VALUE_BYTES,
                b',' => JSON_ITEM_BYTES,
                _ => 0,
            };
        }
    }
}

/// Tells the strings of a JSON text from the rest, byte by byte.
#[derive(Default)]
struct Strings {
    is_inside: bool,
    is_escaped: bool,
}

impl Strings {
    /// Returns true if the next byte of the text belongs to a string.
    fn has(&mut self, byte: u8) -> bool {
        let was_inside = self.is_inside;
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.is_inside = !self.is_inside,
            _ => {}
        }
        was_inside
    }
}

/// Checks that `body` is one JSON object without refused fields, and with at most [`MAX_JSON_VALUES`] values. Returns
/// the names that are neither in `known` nor harmless.
fn check_fields(
    body: &[u8],
    others: OtherFields<'_>,
    known: Option<&[&str]>,
    prefix: &str,
) -> Result<Vec<String>, ApiError> {
    let mut found = Found::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer
        .deserialize_map(Fields { others, known, found: &mut found })
        .and_then(|()| deserializer.end())
        .map_err(|error| {
            // A body that is neither an object nor JSON is foremost not JSON.
            let syntax = serde_json::from_slice::<IgnoredAny>(body).err();
            let error = syntax.unwrap_or(error);
            let detail = describe(&error);
            match prefix.strip_suffix('.') {
                _ if !error.is_data() => ApiError::InvalidJson { detail },
                Some(field) => ApiError::InvalidType { field: field.to_owned(), detail },
                None => ApiError::InvalidBody { detail },
            }
        })?;
    if let Some(field) = found.crowded {
        let (field, verb) = match field {
            Some(field) => (format!("{prefix}{field}"), "brings the body to"),
            None => (prefix.strip_suffix('.').unwrap_or("body").to_owned(), "has"),
        };
        let problem = format!(
            "{verb} more than {MAX_JSON_VALUES} JSON values, the limit; hint: send fewer list items and object members"
        );
        return Err(ApiError::value(field, problem));
    }
    match found.refused {
        Some(Refused { field, hint, .. }) => {
            Err(ApiError::UnsupportedField { field: format!("{prefix}{field}"), hint })
        }
        None => Ok(found.unknown),
    }
}

struct Fields<'a> {
    others: OtherFields<'a>,
    /// The fields of the body's type; none if it has no fixed ones.
    known: Option<&'a [&'a str]>,
    found: &'a mut Found,
}

#[derive(Default)]
struct Found {
    refused: Option<Refused>,
    /// The JSON values so far.
    num_values: usize,
    /// Set if the body exceeds [`MAX_JSON_VALUES`], to the field with which it does. A name that the client made up is
    /// left out, because the log has the field of an error.
    crowded: Option<Option<String>>,
    /// The first [`MAX_UNKNOWN`] names of unknown fields.
    unknown: Vec<String>,
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let OtherFields { refused, harmless } = self.others;
            if TOKEN_LISTS.contains(&key.as_str()) && refused.iter().all(|refused| refused.field != key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: &RawValue = map.next_value()?;
            let refused = refused.iter().find(|refused| refused.field == key);
            let name = key.as_str();
            let is_known = refused.is_some()
                || harmless.contains(&name)
                || self.known.is_some_and(|known| known.contains(&name));
            self.found.num_values += num_values(value.get());
            if self.found.num_values > MAX_JSON_VALUES && self.found.crowded.is_none() {
                self.found.crowded = Some(is_known.then(|| key.clone()));
            }
            if !is_known && self.known.is_some() && self.found.unknown.len() < MAX_UNKNOWN {
                self.found.unknown.push(key.chars().take(MAX_SHOWN_CHARS).collect());
            }
            if let Some(refused) = refused.filter(|refused| !is_neutral(value.get(), refused.neutral)) {
                self.found.refused.get_or_insert(*refused);
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

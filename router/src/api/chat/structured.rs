//! Structured output: converts the fields of several APIs to one grammar.

use serde_json::{Map, Value};
use trunkline_grammar::Grammar;

use crate::error::ApiError;
use crate::grammars::AskedGrammar;
use crate::http::num_values;
use crate::limits::MAX_JSON_VALUES;

/// The fields of OpenAI's routes that constrain the output: OpenAI's own and vLLM's. All but `response_format` are
/// vLLM's.
#[derive(Debug, Default)]
pub struct StructuredFields {
    pub response_format: Option<Value>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    /// The source of a Lark grammar.
    pub guided_grammar: Option<String>,
    /// An object with exactly one of the members `json`, `regex`, `choice`, `grammar` and `json_object`.
    pub structured_outputs: Option<Value>,
}

impl StructuredFields {
    /// Returns the requested grammar. At most one of the fields may be set.
    pub fn grammar(self) -> Result<Option<AskedGrammar>, ApiError> {
        let fields: [(&'static str, Option<Grammar>); 6] = [
            ("response_format", optional(self.response_format, |value| typed("response_format", value))?),
            ("guided_json", optional(self.guided_json, |value| json_schema("guided_json", value).map(Some))?),
            ("guided_regex", self.guided_regex.map(Grammar::Regex)),
            ("guided_choice", self.guided_choice.map(Grammar::Choices)),
            ("guided_grammar", self.guided_grammar.map(Grammar::Lark)),
            ("structured_outputs", optional(self.structured_outputs, structured_outputs)?),
        ];
        let mut asked = None;
        for (field, grammar) in fields {
            match (grammar, &asked) {
                (None, _) => {}
                (Some(grammar), None) => asked = Some((field, grammar)),
                (Some(_), Some((other, _))) => {
                    let problem =
                        format!("and `{other}` both constrain the output; hint: send only one of them");
                    return Err(ApiError::value(field, problem));
                }
            }
        }
        Ok(asked.map(|(field, grammar)| AskedGrammar { field, grammar }))
    }
}

/// Returns the grammar of a field that is an object with a `type`; `None` for the type `text`.
pub fn request_grammar(field: &'static str, value: Option<Value>) -> Result<Option<AskedGrammar>, ApiError> {
    let grammar = optional(value, |value| typed(field, value))?;
    Ok(grammar.map(|grammar| AskedGrammar { field, grammar }))
}

fn optional(
    value: Option<Value>,
    grammar: impl FnOnce(Value) -> Result<Option<Grammar>, ApiError>,
) -> Result<Option<Grammar>, ApiError> {
    value.map_or(Ok(None), grammar)
}

/// Parses an object with a `type`. A schema is in `json_schema.schema` (OpenAI's chats), `schema` (OpenAI's responses
/// and Anthropic) or `value` (TGI and `InferenceClient`'s chats).
fn typed(field: &str, value: Value) -> Result<Option<Grammar>, ApiError> {
    let mut map = object(field, value)?;
    let kind = match map.remove("type") {
        Some(Value::String(kind)) => kind,
        None => return Err(missing(field, "type")),
        Some(_) => return Err(wrong_type(format!("{field}.type"), "a string")),
    };
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => match schema_member(&mut map) {
            None => Ok(Some(Grammar::JsonObject)),
            Some((_, Value::Null)) => Ok(Some(Grammar::JsonObject)),
            Some((member, schema)) => json_schema(&format!("{field}.{member}"), schema).map(Some),
        },
        "json_schema" => match map.remove("json_schema") {
            Some(outer) => {
                let mut outer = object(&format!("{field}.json_schema"), outer)?;
                let schema = outer.remove("schema").ok_or_else(|| missing(field, "json_schema.schema"))?;
                json_schema(&format!("{field}.json_schema.schema"), schema).map(Some)
            }
            None => match schema_member(&mut map) {
                // TGI accepts the schema itself, or an object with a name and the schema.
                Some(("value", Value::Object(mut value)))
                    if value.get("schema").is_some_and(Value::is_object) =>
                {
                    let schema = value.remove("schema").unwrap_or_default();
                    json_schema(&format!("{field}.value.schema"), schema).map(Some)
                }
                Some((member, schema)) => json_schema(&format!("{field}.{member}"), schema).map(Some),
                None => Err(missing(field, "json_schema")),
            },
        },
        "json" => {
            let schema = map.remove("value").ok_or_else(|| missing(field, "value"))?;
            json_schema(&format!("{field}.value"), schema).map(Some)
        }
        "regex" => match map.remove("value") {
            Some(Value::String(regex)) => Ok(Some(Grammar::Regex(regex))),
            None => Err(missing(field, "value")),
            Some(_) => Err(wrong_type(format!("{field}.value"), "a string")),
        },
        _ => {
            let problem = "must be `text`, `json_object`, `json_schema`, `json` or `regex`";
            Err(ApiError::value(format!("{field}.type"), problem))
        }
    }
}

fn schema_member(map: &mut Map<String, Value>) -> Option<(&'static str, Value)> {
    ["schema", "value"].into_iter().find_map(|member| map.remove(member).map(|schema| (member, schema)))
}

/// Parses vLLM's `structured_outputs`, of which one member may be set.
fn structured_outputs(value: Value) -> Result<Option<Grammar>, ApiError> {
    const FIELD: &str = "structured_outputs";
    let map = object(FIELD, value)?;
    let mut asked: Option<Grammar> = None;
    for (member, value) in map.into_iter().filter(|(_, value)| !value.is_null()) {
        let field = format!("{FIELD}.{member}");
        let grammar = match (member.as_str(), value) {
            ("json", value) => json_schema(&field, value)?,
            ("regex", Value::String(regex)) => Grammar::Regex(regex),
            ("grammar", Value::String(grammar)) => Grammar::Lark(grammar),
            ("regex" | "grammar", _) => return Err(wrong_type(field, "a string")),
            ("choice", value) => Grammar::Choices(texts(field, value)?),
            ("json_object", Value::Bool(true)) => Grammar::JsonObject,
            ("json_object", Value::Bool(false)) => continue,
            ("json_object", _) => return Err(wrong_type(field, "true or false")),
            // These are hints to vLLM's own backends and do not change the output.
            (
                "disable_fallback" | "disable_any_whitespace" | "disable_additional_properties",
                Value::Bool(false),
            ) => {
                continue;
            }
            _ => {
                let hint = "send one of `json`, `regex`, `choice`, `grammar` and `json_object`";
                return Err(ApiError::UnsupportedField { field, hint });
            }
        };
        if asked.replace(grammar).is_some() {
            let problem = "constrains the output in more than one way; hint: send only one of them";
            return Err(ApiError::value(FIELD, problem));
        }
    }
    Ok(asked)
}

/// Parses a JSON schema. Some clients send it as text.
fn json_schema(field: &str, schema: Value) -> Result<Grammar, ApiError> {
    match schema {
        Value::String(text) if num_values(&text) > MAX_JSON_VALUES => {
            let problem = format!("has more than {MAX_JSON_VALUES} JSON values, the limit");
            Err(ApiError::value(field, problem))
        }
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Grammar::JsonSchema(schema)),
            Err(error) => Err(ApiError::value(field, format!("is not a JSON schema: {error}"))),
        },
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(schema)),
        Value::Null | Value::Number(_) | Value::Array(_) => {
            Err(wrong_type(field.to_owned(), "a JSON schema"))
        }
    }
}

fn texts(field: String, value: Value) -> Result<Vec<String>, ApiError> {
    serde_json::from_value(value).map_err(|_| wrong_type(field, "a list of strings"))
}

fn object(field: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(wrong_type(field.to_owned(), "an object")),
    }
}

fn missing(field: &str, member: &str) -> ApiError {
    ApiError::MissingField { field: format!("{field}.{member}") }
}

fn wrong_type(field: String, expected: &str) -> ApiError {
    ApiError::InvalidType { field, detail: format!("must be {expected}") }
}

//! Structured output: converts the fields of several APIs to one grammar.

use serde_json::{Map, Value};
use trunkline_grammar::{Grammar, JsonSchema, StructuralTag};

use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_JSON_VALUES;
use trunkline_generation::grammars::AskedGrammar;
use trunkline_http::num_values;

/// The fields of OpenAI's routes that constrain the output: OpenAI's own and vLLM's. All but `response_format` are
/// vLLM's.
#[derive(Debug, Default)]
pub struct StructuredFields {
    pub response_format: Option<Value>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    /// The source of a Lark or EBNF grammar.
    pub guided_grammar: Option<String>,
    /// The same, by llama.cpp's name. Clients send an empty text for none.
    pub grammar: Option<String>,
    /// The same, by SGLang's name.
    pub ebnf: Option<String>,
    /// An object with exactly one of the members `json`, `regex`, `choice`, `grammar`, `json_object` and
    /// `structural_tag`.
    pub structured_outputs: Option<Value>,
}

impl StructuredFields {
    /// Returns the requested grammar. At most one of the fields may be set.
    pub fn grammar(self) -> Result<Option<AskedGrammar>, ApiError> {
        let fields: [(&'static str, Option<Grammar>); 8] = [
            (
                "response_format",
                optional(self.response_format, |value| typed("response_format", value, Relaxed::ByDefault))?,
            ),
            (
                "guided_json",
                optional(self.guided_json, |value| json_schema("guided_json", value, true).map(Some))?,
            ),
            ("guided_regex", self.guided_regex.map(Grammar::Regex)),
            ("guided_choice", self.guided_choice.map(Grammar::Choices)),
            ("guided_grammar", self.guided_grammar.map(Grammar::Lark)),
            ("grammar", self.grammar.filter(|text| !text.is_empty()).map(Grammar::Lark)),
            ("ebnf", self.ebnf.map(Grammar::Lark)),
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

/// When keywords are left out of a schema because no grammar can hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relaxed {
    /// Unless the request says `strict: true`.
    ByDefault,
    /// If the request says `strict: false`.
    IfAsked,
}

/// Returns the grammar of a field that is an object with a `type`; `None` for the type `text`.
pub fn request_grammar(
    field: &'static str,
    value: Option<Value>,
    relaxed: Relaxed,
) -> Result<Option<AskedGrammar>, ApiError> {
    let grammar = optional(value, |value| typed(field, value, relaxed))?;
    Ok(grammar.map(|grammar| AskedGrammar { field, grammar }))
}

/// Returns the grammar of a field that is the text `json`, or a JSON schema. Keywords that no grammar can hold are left
/// out. An empty text is no format.
pub fn json_format(field: &'static str, value: Option<Value>) -> Result<Option<AskedGrammar>, ApiError> {
    let grammar = match value {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) if text == "json" => Grammar::JsonObject,
        Some(schema @ Value::Object(_)) => json_schema(field, schema, false)?,
        Some(_) => return Err(wrong_type(field.to_owned(), "`json` or a JSON schema")),
    };
    Ok(Some(AskedGrammar { field, grammar }))
}

fn optional(
    value: Option<Value>,
    grammar: impl FnOnce(Value) -> Result<Option<Grammar>, ApiError>,
) -> Result<Option<Grammar>, ApiError> {
    value.map_or(Ok(None), grammar)
}

/// Parses an object with a `type`. A schema is in `json_schema.schema` (OpenAI's chats), `schema` (OpenAI's responses
/// and Anthropic) or `value` (TGI and `InferenceClient`'s chats).
fn typed(field: &str, value: Value, relaxed: Relaxed) -> Result<Option<Grammar>, ApiError> {
    let mut map = object(field, value)?;
    let is_strict = strict(field, &mut map, relaxed == Relaxed::IfAsked)?;
    let json_schema = |field: &str, schema: Value| json_schema(field, schema, is_strict);
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
                let is_strict = strict(&format!("{field}.json_schema"), &mut outer, is_strict)?;
                let schema = outer.remove("schema").ok_or_else(|| missing(field, "json_schema.schema"))?;
                self::json_schema(&format!("{field}.json_schema.schema"), schema, is_strict).map(Some)
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
        "structural_tag" => structural_tag(field, &map, is_strict).map(Some),
        _ => {
            let problem = "must be `text`, `json_object`, `json_schema`, `json`, `regex` or `structural_tag`";
            Err(ApiError::value(format!("{field}.type"), problem))
        }
    }
}

/// Parses the structural tag of SGLang, vLLM and XGrammar.
fn structural_tag(field: &str, tag: &Map<String, Value>, is_strict: bool) -> Result<Grammar, ApiError> {
    match StructuralTag::parse(tag, is_strict) {
        Ok(tag) => Ok(Grammar::StructuralTag(tag)),
        Err(fault) => Err(ApiError::value(field, format!("is not a structural tag: it {fault}"))),
    }
}

/// Takes the member `strict`.
fn strict(field: &str, map: &mut Map<String, Value>, default: bool) -> Result<bool, ApiError> {
    match map.remove("strict") {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(is_strict)) => Ok(is_strict),
        Some(_) => Err(wrong_type(format!("{field}.strict"), "true or false")),
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
            ("json", value) => json_schema(&field, value, true)?,
            ("regex", Value::String(regex)) => Grammar::Regex(regex),
            ("grammar", Value::String(grammar)) => Grammar::Lark(grammar),
            ("regex" | "grammar", _) => return Err(wrong_type(field, "a string")),
            ("choice", value) => Grammar::Choices(texts(field, value)?),
            ("structural_tag", value) => structural_tag(&field, &parsed_object(&field, value)?, true)?,
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
                let hint =
                    "send one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`";
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
fn json_schema(field: &str, schema: Value, is_strict: bool) -> Result<Grammar, ApiError> {
    let grammar = |schema| Grammar::JsonSchema(JsonSchema::new(schema, is_strict));
    match schema {
        Value::String(text) => parsed(field, &text, "a JSON schema").map(grammar),
        Value::Object(_) | Value::Bool(_) => Ok(grammar(schema)),
        Value::Null | Value::Number(_) | Value::Array(_) => {
            Err(wrong_type(field.to_owned(), "a JSON schema"))
        }
    }
}

fn parsed(field: &str, text: &str, expected: &str) -> Result<Value, ApiError> {
    if num_values(text) > MAX_JSON_VALUES {
        let problem = format!("has more than {MAX_JSON_VALUES} JSON values, the limit");
        return Err(ApiError::value(field, problem));
    }
    serde_json::from_str(text).map_err(|error| ApiError::value(field, format!("is not {expected}: {error}")))
}

/// Returns an object that may be sent as text.
fn parsed_object(field: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::String(text) => object(field, parsed(field, &text, "a JSON object")?),
        value => object(field, value),
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

//! The grammar of calls whose arguments are written one by one between tags, as a structural tag.

use serde_json::{Map, Value, json};

use crate::call_start::Tags;
use crate::signature::Types;

/// Members of a schema of arguments that tags can hold: each parameter with its own schema.
const HELD: [&str; 11] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "title",
    "description",
    "examples",
];
/// Members of the schema of a text that limit it. A grammar would have to limit text without quotes.
const LIMITS: [&str; 6] = ["minLength", "maxLength", "pattern", "format", "allOf", "not"];

/// The texts of a call around its tags.
#[derive(Debug)]
pub struct TaggedCall {
    pub(crate) before_name: &'static str,
    pub(crate) after_name: &'static str,
    pub(crate) tags: &'static Tags,
    /// The text after the last argument, without the mark that ends the call.
    pub(crate) end: &'static str,
}

impl TaggedCall {
    /// Returns the structural tag of a call of `name`, whose arguments follow the JSON schema `schema`.
    ///
    /// Arguments come in the order of `properties`. Texts have no quotes, so they are any text, or one of `enum`.
    /// Returns `None` if no arguments can follow the schema, or if it is strict and has other rules. Without
    /// `is_strict` other rules are left out.
    pub fn format(&self, name: &str, schema: &Value, is_strict: bool) -> Option<Value> {
        let empty = Map::new();
        let root = schema.as_object().unwrap_or(&empty);
        if is_strict && root.keys().any(|key| !HELD.contains(&key.as_str())) {
            return None;
        }
        let required: Vec<&str> = list(root.get("required")).filter_map(Value::as_str).collect();
        let mut elements = vec![text(&format!("{}{name}{}", self.before_name, self.after_name))];
        let properties = root.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        // A parameter may be required without being described.
        let other = root.get("additionalProperties").unwrap_or(&Value::Bool(true));
        let others = required.iter().filter(|key| !properties.contains_key(**key));
        if *other == Value::Bool(false) && others.clone().next().is_some() {
            return None;
        }
        let described = properties.iter().map(|(key, property)| (key.as_str(), property));
        for (key, property) in described.chain(others.map(|key| (*key, other))) {
            let tag = self.argument(key, self.value(property, schema, is_strict)?);
            let is_required = required.contains(&key);
            elements.push(json!({"type": "tags_with_separator", "tags": [tag], "separator": "",
                "at_least_one": is_required, "stop_after_first": true}));
        }
        if !self.end.is_empty() {
            elements.push(text(self.end));
        }
        Some(json!({"type": "sequence", "elements": elements}))
    }

    fn argument(&self, key: &str, content: Value) -> Value {
        let Tags { key_open, key_close, value_open, value_close, has_value_lines, .. } = self.tags;
        let line = if *has_value_lines { "\n" } else { "" };
        let between = if value_open.is_empty() { "" } else { "\n" };
        json!({"type": "tag", "content": content,
            "begin": format!("{key_open}{key}{key_close}{between}{value_open}{line}"),
            "end": format!("{line}{value_close}\n")})
    }

    /// Returns the format of the value of a property.
    fn value(&self, property: &Value, root: &Value, is_strict: bool) -> Option<Value> {
        let types = Types::of_schema(property, root, 0);
        if !types.contains(Types::STRING) || types == Types::ANY {
            return Some(json!({"type": "json_schema", "json_schema": with_definitions(property, root),
                "strict": is_strict}));
        }
        if let Some(values) = property.get("enum").and_then(Value::as_array) {
            let texts = values.iter().map(|value| match value {
                Value::String(value) => text(value),
                other => text(&other.to_string()),
            });
            return Some(json!({"type": "or", "elements": texts.collect::<Vec<Value>>()}));
        }
        if let Some(value) = property.get("const").and_then(Value::as_str) {
            return Some(text(value));
        }
        let is_plain = types.is_scalar() && property.get("$ref").is_none();
        let is_limited = LIMITS.iter().any(|limit| property.get(limit).is_some());
        (!is_strict || is_plain && !is_limited).then(|| json!({"type": "any_text"}))
    }
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn text(value: &str) -> Value {
    json!({"type": "const_string", "value": value})
}

/// Returns the schema of a property with the definitions that its references name.
fn with_definitions(property: &Value, root: &Value) -> Value {
    let mut property = property.clone();
    if let Value::Object(property) = &mut property {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                property.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    property
}

//! Translates what clients' libraries write into the parser's form, and removes what has no effect.

use serde_json::{Map, Value, json};

use crate::schema::keywords::{FORMATS, IGNORED_KEYWORDS};

const COUNTS: [&str; 6] =
    ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];
/// Keywords that have no effect if their value is an empty object.
const NO_EFFECT_IF_EMPTY: [&str; 3] = ["dependencies", "dependentRequired", "dependentSchemas"];
/// The largest count that a double represents exactly, together with all smaller ones.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;
/// Formats of the drafts that are not enforced. Validators check them, so they are refused or left out by name. Others
/// are annotations, which the drafts let a reader ignore.
const UNENFORCED_DRAFT_FORMATS: [&str; 9] = [
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
];

/// Returns true if no value is valid. Libraries write `{"not": {}}` where a property must be absent.
pub(crate) fn allows_nothing(schema: &Map<String, Value>) -> bool {
    let is_any = match schema.get("not") {
        Some(Value::Bool(is_any)) => *is_any,
        Some(Value::Object(inner)) => {
            inner.keys().all(|keyword| IGNORED_KEYWORDS.contains(&keyword.as_str()))
        }
        _ => false,
    };
    // References may lead to definitions inside the schema.
    is_any
        && ["$defs", "definitions", "$id", "id", "$anchor"]
            .iter()
            .all(|keyword| !schema.contains_key(*keyword))
}

/// Removes keywords without effect from one schema, and writes counts as integers.
pub(crate) fn simplify(schema: &mut Map<String, Value>) {
    // The parser would read the value as its own options.
    schema.shift_remove("x-guidance");
    // Some libraries write null for keywords that are not set.
    schema.retain(|keyword, value| !value.is_null() || keyword == "const");
    let is_short = schema.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1);
    schema.retain(|keyword, value| match keyword.as_str() {
        "uniqueItems" => *value != Value::Bool(false) && !is_short,
        "additionalProperties" => *value != Value::Bool(true) && *value != json!({}),
        keyword if NO_EFFECT_IF_EMPTY.contains(&keyword) => {
            value.as_object().is_none_or(|entries| !entries.is_empty())
        }
        _ => true,
    });
    for keyword in COUNTS {
        if let Some(value) = schema.get_mut(keyword)
            && let Some(count) = value.as_f64()
            && value.is_f64()
            && count.fract() == 0.0
            && (0.0..=MAX_COUNT).contains(&count)
        {
            *value = json!(count as u64);
        }
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && !FORMATS.contains(&format)
        && (!allows_type(schema, "string") || !UNENFORCED_DRAFT_FORMATS.contains(&format))
    {
        schema.shift_remove("format");
    }
}

/// Returns true if the keyword `type` allows values of a type.
pub(crate) fn allows_type(schema: &Map<String, Value>, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == kind,
        Some(Value::Array(names)) => names.iter().any(|name| name == kind),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simplified(mut schema: Value) -> Value {
        simplify(schema.as_object_mut().expect("an object"));
        schema
    }

    #[test]
    fn keywords_without_effect_are_removed() {
        for (schema, expected) in [
            (json!({"uniqueItems": false, "x-guidance": {}, "dependentRequired": {}}), json!({})),
            (json!({"uniqueItems": true, "maxItems": 1, "additionalProperties": {}}), json!({"maxItems": 1})),
            (json!({"dependencies": {"a": []}}), json!({"dependencies": {"a": []}})),
            (
                json!({"required": null, "properties": null, "enum": null, "items": null, "const": null, "not": null}),
                json!({"const": null}),
            ),
            (json!({"minItems": 5.0, "maxLength": 0.0}), json!({"minItems": 5, "maxLength": 0})),
            (json!({"minItems": 5.5, "maxLength": -1.0}), json!({"minItems": 5.5, "maxLength": -1.0})),
            (json!({"type": "integer", "format": "int32"}), json!({"type": "integer"})),
            (json!({"format": "int32"}), json!({})),
            (json!({"type": "integer", "format": "regex"}), json!({"type": "integer"})),
            (json!({"format": "regex", "pattern": "a"}), json!({"format": "regex", "pattern": "a"})),
            (json!({"format": "uuid", "pattern": "a"}), json!({"format": "uuid", "pattern": "a"})),
        ] {
            assert_eq!(simplified(schema), expected);
        }
    }

    #[test]
    fn a_negated_empty_schema_allows_nothing() {
        let nothing = |schema: Value| allows_nothing(schema.as_object().expect("an object"));
        assert!(nothing(json!({"not": {}})) && nothing(json!({"not": true, "title": "x"})));
        assert!(nothing(json!({"not": {"description": "x"}})));
        assert!(!nothing(json!({"not": false})) && !nothing(json!({"not": {"type": "null"}})));
        assert!(!nothing(json!({"not": {}, "$defs": {}})) && !nothing(json!({})));
    }
}

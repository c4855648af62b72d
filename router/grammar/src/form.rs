//! Forms in which clients' libraries write what the parser knows in another, or what says nothing.

use serde_json::{Map, Value, json};

use crate::keywords::{FORMATS, IGNORED_KEYWORDS};

/// Keywords whose value is a count.
const COUNTS: [&str; 6] =
    ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];
/// Keywords that say nothing with an empty object.
const EMPTY: [&str; 3] = ["dependencies", "dependentRequired", "dependentSchemas"];
/// Whole doubles up to here are exact.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;
/// Formats of the drafts that are not held here. A pattern beside them need not, and validators look at them.
const FORMATS_OF_DRAFTS: [&str; 9] = [
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

/// Whether nothing is valid, as it is written where a property must be absent: `{"not": {}}`.
pub(crate) fn allows_nothing(schema: &Map<String, Value>) -> bool {
    let is_any = match schema.get("not") {
        Some(Value::Bool(is_any)) => *is_any,
        Some(Value::Object(inner)) => inner.keys().all(|keyword| says_nothing(keyword)),
        _ => false,
    };
    // References lead to what is defined inside.
    is_any
        && ["$defs", "definitions", "$id", "id", "$anchor"]
            .iter()
            .all(|keyword| !schema.contains_key(*keyword))
}

fn says_nothing(keyword: &str) -> bool {
    IGNORED_KEYWORDS.contains(&keyword)
}

/// Takes out of one schema what says nothing, and writes counts as integers.
pub(crate) fn simplify(schema: &mut Map<String, Value>) {
    // The parser would take it as its own options.
    schema.shift_remove("x-guidance");
    // Some libraries write out what is not set.
    schema.retain(|keyword, value| !value.is_null() || keyword == "const");
    schema.retain(|keyword, value| match keyword.as_str() {
        "uniqueItems" => *value != Value::Bool(false),
        keyword if EMPTY.contains(&keyword) => value.as_object().is_none_or(|entries| !entries.is_empty()),
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
        && (!may_be(schema, "string") || !FORMATS_OF_DRAFTS.contains(&format) && has_pattern(schema))
    {
        schema.shift_remove("format");
    }
}

/// A pattern holds for the whole.
fn has_pattern(schema: &Map<String, Value>) -> bool {
    let of_all = schema.get("allOf").and_then(Value::as_array);
    schema.get("pattern").is_some_and(Value::is_string)
        || of_all.is_some_and(|all| {
            !all.is_empty() && all.iter().all(|part| part.get("pattern").is_some_and(Value::is_string))
        })
}

/// Whether values of a type are among those that `type` allows.
pub(crate) fn may_be(schema: &Map<String, Value>, kind: &str) -> bool {
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
    fn what_says_nothing_is_taken_out() {
        for (schema, expected) in [
            (json!({"uniqueItems": false, "x-guidance": {}, "dependentRequired": {}}), json!({})),
            (json!({"dependencies": {"a": []}}), json!({"dependencies": {"a": []}})),
            (
                json!({"required": null, "properties": null, "enum": null, "items": null, "const": null, "not": null}),
                json!({"const": null}),
            ),
            (json!({"minItems": 5.0, "maxLength": 0.0}), json!({"minItems": 5, "maxLength": 0})),
            (json!({"minItems": 5.5, "maxLength": -1.0}), json!({"minItems": 5.5, "maxLength": -1.0})),
            (json!({"type": "integer", "format": "int32"}), json!({"type": "integer"})),
            (json!({"format": "int32"}), json!({"format": "int32"})),
            (json!({"format": "nanoid", "pattern": "a"}), json!({"pattern": "a"})),
            (json!({"format": "x", "allOf": [{"pattern": "a"}]}), json!({"allOf": [{"pattern": "a"}]})),
            (
                json!({"format": "x", "allOf": [{"pattern": "a"}, {}]}),
                json!({"format": "x", "allOf": [{"pattern": "a"}, {}]}),
            ),
            (json!({"format": "regex", "pattern": "a"}), json!({"format": "regex", "pattern": "a"})),
            (json!({"format": "uuid", "pattern": "a"}), json!({"format": "uuid", "pattern": "a"})),
        ] {
            assert_eq!(simplified(schema), expected);
        }
    }

    #[test]
    fn not_anything_is_nothing() {
        let nothing = |schema: Value| allows_nothing(schema.as_object().expect("an object"));
        assert!(nothing(json!({"not": {}})) && nothing(json!({"not": true, "title": "x"})));
        assert!(nothing(json!({"not": {"description": "x"}})));
        assert!(!nothing(json!({"not": false})) && !nothing(json!({"not": {"type": "null"}})));
        assert!(!nothing(json!({"not": {}, "$defs": {}})) && !nothing(json!({})));
    }
}

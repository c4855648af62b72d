//! Finds the schemas inside a schema.

use serde_json::Value;

/// Keywords whose value is a schema.
const ONE: [&str; 6] = ["additionalItems", "additionalProperties", "else", "if", "items", "then"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value maps names to schemas.
const MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// A keyword whose value maps names to schemas or to lists of names.
const MIXED: &str = "dependencies";

/// Returns the schemas in a keyword's value, each with the path step from the value to it, or `None` if it is the value
/// itself.
pub(crate) fn of<'a>(keyword: &str, value: &'a Value) -> Vec<(Option<String>, &'a Value)> {
    match value {
        Value::Object(entries) if MAPS.contains(&keyword) => entries
            .iter()
            .filter(|(_, entry)| keyword != MIXED || is_schema(entry))
            .map(|(name, entry)| (Some(name.clone()), entry))
            .collect(),
        Value::Array(entries) if LISTS.contains(&keyword) => {
            entries.iter().enumerate().map(|(index, entry)| (Some(index.to_string()), entry)).collect()
        }
        Value::Object(_) if ONE.contains(&keyword) => vec![(None, value)],
        _ => Vec::new(),
    }
}

/// Does the same as [`of`] for a mutable value.
pub(crate) fn of_mut<'a>(keyword: &str, value: &'a mut Value) -> Vec<(Option<String>, &'a mut Value)> {
    if value.is_object() && ONE.contains(&keyword) {
        return vec![(None, value)];
    }
    match value {
        Value::Object(entries) if MAPS.contains(&keyword) => entries
            .iter_mut()
            .filter(|(_, entry)| keyword != MIXED || is_schema(entry))
            .map(|(name, entry)| (Some(name.clone()), entry))
            .collect(),
        Value::Array(entries) if LISTS.contains(&keyword) => {
            entries.iter_mut().enumerate().map(|(index, entry)| (Some(index.to_string()), entry)).collect()
        }
        _ => Vec::new(),
    }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

//! Finds out whether a value may match two schemas at once.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::schema::document::{
    ALL_KINDS, ARRAY, Document, FRACTION, INTEGER, OBJECT, STRING, kind, kinds_of_type, listed,
};
use crate::schema::property_names::all_names;

impl Document {
    /// Returns true if no value matches all schemas of `a` and all of `b`. False may mean that it is not known.
    pub(crate) fn are_disjoint(&self, a: &[&Value], b: &[&Value]) -> bool {
        if !self.may_work() {
            return false;
        }
        let (a, b) = (self.conjuncts(a), self.conjuncts(b));
        if a.iter().chain(&b).any(|part| **part == false) {
            return true;
        }
        let mut kinds = self.kinds(&a, 0) & self.kinds(&b, 0);
        if kinds == 0 || self.excludes_values(&a, &b) || self.excludes_values(&b, &a) {
            return true;
        }
        if self.excludes_alternatives(&a, &b) || self.excludes_alternatives(&b, &a) {
            return true;
        }
        let both: Vec<&Value> = a.iter().chain(&b).copied().collect();
        if kinds & (INTEGER | FRACTION) != 0 && has_empty_range(&both) {
            kinds &= !(INTEGER | FRACTION);
        }
        for (kind, least, most) in [(STRING, "minLength", "maxLength"), (ARRAY, "minItems", "maxItems")] {
            if kinds & kind != 0 && count(&both, least).max() > count(&both, most).min().or(Some(u64::MAX)) {
                kinds &= !kind;
            }
        }
        if kinds & OBJECT != 0 && self.excludes_objects(&a, &b) {
            kinds &= !OBJECT;
        }
        kinds == 0
    }

    /// Returns the kinds of values that may match all of these schemas.
    pub(crate) fn kinds(&self, schemas: &[&Value], depth: usize) -> u8 {
        if depth > 4 || !self.may_work() {
            return ALL_KINDS;
        }
        let of_schema = |schema: &&Value| {
            let named = schema.get("type").map_or(ALL_KINDS, kinds_of_type);
            let values = listed(schema)
                .map_or(ALL_KINDS, |values| values.iter().map(|value| kind(value)).fold(0, |a, b| a | b));
            let alternatives =
                ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
            let alternatives = alternatives.fold(ALL_KINDS, |kinds, list| {
                let each = list.iter().map(|part| self.kinds(&self.conjuncts(&[part]), depth + 1));
                kinds & each.fold(0, |a, b| a | b)
            });
            named & values & alternatives
        };
        schemas.iter().map(of_schema).fold(ALL_KINDS, |all, kinds| all & kinds)
    }

    /// Returns true if `a` lists its values and `b` allows none of them.
    fn excludes_values(&self, a: &[&Value], b: &[&Value]) -> bool {
        let is_excluded = |value: &Value| b.iter().any(|part| self.allows(part, value) == Some(false));
        let texts = |part: &&Value| {
            let is_text = part.get("type").is_some_and(|kind| kind == "string");
            let pattern = part.get("pattern").and_then(Value::as_str).filter(|_| is_text);
            pattern
                .and_then(all_names)
                .is_some_and(|texts| texts.into_iter().all(|text| is_excluded(&text.into())))
        };
        a.iter().filter_map(|part| listed(part)).any(|values| values.into_iter().all(is_excluded))
            || a.iter().any(texts)
    }

    /// Returns true if each of some alternatives of `a` excludes `b`.
    fn excludes_alternatives(&self, a: &[&Value], b: &[&Value]) -> bool {
        let lists = a.iter().flat_map(|part| ["anyOf", "oneOf"].map(|keyword| part.get(keyword)));
        lists
            .flatten()
            .filter_map(Value::as_array)
            .any(|list| list.iter().all(|part| self.are_disjoint(&[part], b)))
    }

    /// Returns true if a property that one side requires cannot be what both sides allow.
    fn excludes_objects(&self, a: &[&Value], b: &[&Value]) -> bool {
        let names: BTreeSet<&str> = a.iter().chain(b).flat_map(|part| required(part)).collect();
        names.into_iter().any(|name| {
            let (of_a, of_b) = (properties(a, name), properties(b, name));
            [&of_a, &of_b].iter().any(|side| side.contains(&&Value::Bool(false)))
                || !of_a.is_empty() && !of_b.is_empty() && self.are_disjoint(&of_a, &of_b)
        })
    }
}

/// Returns the names that a schema requires.
pub(crate) fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the schemas of a property. Patterns of names are not understood here, so they add nothing.
pub(crate) fn properties<'a>(schemas: &[&'a Value], name: &str) -> Vec<&'a Value> {
    let of_schema =
        |schema: &&'a Value| match schema.get("properties").and_then(|properties| properties.get(name)) {
            None if !schema.get("patternProperties").is_some_and(Value::is_object) => {
                schema.get("additionalProperties")
            }
            property => property,
        };
    schemas.iter().filter_map(of_schema).collect()
}

/// Returns true if schemas forbid properties that they do not list.
pub(crate) fn is_closed(schema: &Value) -> bool {
    schema.get("additionalProperties") == Some(&Value::Bool(false))
        && schema.get("patternProperties").is_none()
}

fn count(schemas: &[&Value], keyword: &str) -> impl Iterator<Item = u64> {
    schemas.iter().filter_map(|schema| schema.get(keyword)?.as_u64()).collect::<Vec<_>>().into_iter()
}

/// Returns true if the bounds of numbers exclude each other.
fn has_empty_range(schemas: &[&Value]) -> bool {
    let bounds = |keyword: &str| {
        schemas.iter().filter_map(|schema| schema.get(keyword)?.as_f64()).collect::<Vec<_>>().into_iter()
    };
    let lower = bounds("minimum").chain(bounds("exclusiveMinimum")).reduce(f64::max);
    let upper = bounds("maximum").chain(bounds("exclusiveMaximum")).reduce(f64::min);
    let (Some(lower), Some(upper)) = (lower, upper) else { return false };
    let is_exclusive = bounds("exclusiveMinimum").any(|bound| bound == lower)
        || bounds("exclusiveMaximum").any(|bound| bound == upper);
    lower > upper || lower == upper && is_exclusive
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disjoint(a: Value, b: Value) -> bool {
        let root = json!({"$defs": {
            "text": {"type": "string"},
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "loop": {"$ref": "#/$defs/loop"},
        }});
        Document::new(&root).are_disjoint(&[&a], &[&b])
    }

    #[test]
    fn schemas_are_told_apart() {
        let closed = |name: &str, required: Value| json!({"type": "object", "properties": {name: {}}, "required": required, "additionalProperties": false});
        for (a, b) in [
            (json!({"type": "string"}), json!({"type": ["null", "number"]})),
            (json!({"$ref": "#/$defs/text"}), json!({"type": "array"})),
            (json!({"enum": ["a", 1]}), json!({"enum": ["b", 2]})),
            (json!({"const": 1}), json!({"type": "string"})),
            (json!({"minimum": 5, "type": "number"}), json!({"exclusiveMaximum": 5, "type": "integer"})),
            (json!({"type": "string", "maxLength": 2}), json!({"minLength": 3})),
            (closed("a", json!(["a"])), closed("b", json!([]))),
            (
                json!({"$ref": "#/$defs/cat"}),
                json!({"type": "object", "properties": {"kind": {"enum": ["dog", "fox"]}}}),
            ),
            (json!({"anyOf": [{"type": "null"}, {"type": "array"}]}), json!({"type": "object"})),
            (json!(false), json!({})),
            (
                json!({"type": "string", "pattern": "^a:(b|c):$"}),
                json!({"type": "string", "pattern": "^(a:d|[x-z]+):$"}),
            ),
        ] {
            assert!(disjoint(a.clone(), b.clone()) && disjoint(b.clone(), a.clone()), "{a} {b}");
        }
    }

    #[test]
    fn schemas_that_may_share_a_value_are_not_disjoint() {
        for (a, b) in [
            (json!({}), json!({"type": "null"})),
            (json!({"type": "integer"}), json!({"type": "number"})),
            (json!({"const": 1}), json!({"const": 1.0})),
            (json!({"type": "number", "minimum": 5}), json!({"type": "number", "maximum": 5})),
            // Both allow a string.
            (json!({"minimum": 5}), json!({"maximum": 4})),
            (json!({"properties": {"k": {"const": 1}}, "required": ["k"]}), json!({"type": "object"})),
            // Without `required`, both allow an empty object.
            (
                json!({"type": "object", "properties": {"k": {"const": 1}}}),
                json!({"type": "object", "properties": {"k": {"const": 2}}}),
            ),
            (json!({"$ref": "#/$defs/loop"}), json!({"type": "null"})),
            (
                json!({"type": "object", "required": ["ab"]}),
                json!({"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": false}),
            ),
        ] {
            assert!(!disjoint(a.clone(), b.clone()) && !disjoint(b.clone(), a.clone()), "{a} {b}");
        }
    }
}

//! Finds schemas that no finite text matches, because each value would have to contain another of the same kind.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::schema::normalize::allows_type;
use crate::schema::subschemas;

/// Most rounds over the targets of references. Only long chains of references in no particular order need more.
const MAX_ROUNDS: usize = 16;

/// Replaces each schema that no finite value matches by `false`, which the parser leaves out where it is optional.
pub(crate) fn remove_infinite(root: &mut Value) {
    let Some(targets) = ReferenceTargets::find(root) else { return };
    if targets.is_finite_by_reference.values().any(|is_finite| !is_finite) {
        targets.remove_infinite(root);
    }
}

/// The finiteness of the targets of a schema's references. Other targets count as finite.
struct ReferenceTargets {
    is_finite_by_reference: HashMap<String, bool>,
}

impl ReferenceTargets {
    /// Returns `None` if the result is not stable after [`MAX_ROUNDS`].
    fn find(root: &Value) -> Option<Self> {
        let mut found = Vec::new();
        find_references(root, &mut found);
        found.retain(|(_, target)| target.is_some());
        // Each reference is examined once, because many may lead to one large schema.
        let mut distinct = HashSet::new();
        found.retain(|(reference, _)| distinct.insert(reference.clone()));
        let is_finite_by_reference = found.iter().map(|(reference, _)| (reference.clone(), false)).collect();
        let mut targets = Self { is_finite_by_reference };
        for round in 0..MAX_ROUNDS {
            let mut has_changed = false;
            for index in 0..found.len() {
                // The direction alternates, because a chain may be written forwards or backwards.
                let index = if round % 2 == 0 { found.len() - 1 - index } else { index };
                let (reference, target) = &found[index];
                if !targets.is_finite_by_reference[reference]
                    && target.is_some_and(|target| targets.is_finite(target))
                {
                    targets.is_finite_by_reference.insert(reference.clone(), true);
                    has_changed = true;
                }
            }
            if !has_changed {
                return Some(targets);
            }
        }
        None
    }

    /// Returns true if a finite value may match.
    fn is_finite(&self, schema: &Value) -> bool {
        let Value::Object(map) = schema else { return *schema != Value::Bool(false) };
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        map.get("$ref")
            .and_then(Value::as_str)
            .is_none_or(|to| self.is_finite_by_reference.get(to) != Some(&false))
            && list("allOf").is_none_or(|all| all.iter().all(|part| self.is_finite(part)))
            && ["anyOf", "oneOf"].into_iter().all(|keyword| {
                list(keyword).is_none_or(|parts| parts.iter().any(|part| self.is_finite(part)))
            })
            && self.has_finite_type(map)
    }

    fn has_finite_type(&self, map: &Map<String, Value>) -> bool {
        ["null", "boolean", "number", "integer", "string"].into_iter().any(|kind| allows_type(map, kind))
            || allows_type(map, "array") && self.has_finite_items(map)
            || allows_type(map, "object") && self.has_finite_properties(map)
            // The parser reports an unknown type.
            || !["array", "object"].into_iter().any(|kind| allows_type(map, kind))
    }

    fn has_finite_items(&self, map: &Map<String, Value>) -> bool {
        let at_least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let is_finite = |keyword: &str| map.get(keyword).is_none_or(|items| self.is_finite(items));
        let listed = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        let (first, rest) = match (listed("items"), listed("prefixItems")) {
            (Some(first), _) => (first.as_slice(), "additionalItems"),
            (None, Some(first)) => (first.as_slice(), "items"),
            (None, None) => (&[][..], "items"),
        };
        first.iter().take(at_least as usize).all(|item| self.is_finite(item))
            && (at_least <= first.len() as u64 || is_finite(rest))
    }

    fn has_finite_properties(&self, map: &Map<String, Value>) -> bool {
        let properties = map.get("properties").and_then(Value::as_object);
        let is_closed = map.get("additionalProperties") == Some(&Value::Bool(false))
            && !map.contains_key("patternProperties");
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        required.filter_map(Value::as_str).all(|name| {
            match properties.and_then(|properties| properties.get(name)) {
                Some(property) => self.is_finite(property),
                None => !is_closed,
            }
        })
    }

    fn remove_infinite(&self, schema: &mut Value) {
        if !self.is_finite(schema) {
            *schema = Value::Bool(false);
            return;
        }
        let Value::Object(map) = schema else { return };
        for (keyword, value) in map.iter_mut() {
            subschemas::of_mut(keyword, value).into_iter().for_each(|(_, inner)| self.remove_infinite(inner));
        }
    }
}

/// Collects all references of a schema, with their targets inside it.
fn find_references<'a>(root: &'a Value, found: &mut Vec<(String, Option<&'a Value>)>) {
    let mut waiting = vec![root];
    while let Some(schema) = waiting.pop() {
        let Value::Object(map) = schema else { continue };
        if let Some(reference) = map.get("$ref").and_then(Value::as_str)
            && let Some(fragment) = reference.strip_prefix('#')
        {
            found.push((reference.to_owned(), root.pointer(fragment)));
        }
        let inner = map.iter().flat_map(|(keyword, value)| subschemas::of(keyword, value));
        waiting.extend(inner.map(|(_, inner)| inner));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pruned(mut schema: Value) -> Value {
        remove_infinite(&mut schema);
        schema
    }

    #[test]
    fn a_schema_that_requires_itself_becomes_false() {
        let node = json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]});
        let of_node = |schema: Value| {
            let mut schema = schema;
            schema["$defs"] = json!({"n": node});
            pruned(schema)
        };
        assert_eq!(of_node(json!({"$ref": "#/$defs/n"})), json!(false));
        assert_eq!(of_node(json!({"allOf": [{"$ref": "#/$defs/n"}]})), json!(false));
        assert_eq!(
            of_node(
                json!({"properties": {}, "required": ["a"], "additionalProperties": false, "type": "object"})
            ),
            json!(false)
        );
        assert_eq!(
            of_node(json!({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/n"}})),
            json!(false)
        );
        assert_eq!(
            of_node(json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]})),
            json!({"anyOf": [{"type": "null"}, false], "$defs": {"n": false}})
        );
        assert_eq!(
            of_node(json!({"type": "array", "prefixItems": [{"$ref": "#/$defs/n"}]})),
            json!({"type": "array", "prefixItems": [false], "$defs": {"n": false}})
        );
    }

    #[test]
    fn finite_schemas_are_unchanged() {
        for node in [
            json!({"type": "object", "properties": {"c": {"$ref": "#"}}}),
            json!({"properties": {"c": {"$ref": "#"}}, "required": ["c"]}),
            json!({"type": "array", "items": {"$ref": "#"}}),
            json!({"anyOf": [{"type": "null"}, {"type": "array", "minItems": 2, "items": {"$ref": "#"}}]}),
            json!({"$ref": "#/elsewhere", "elsewhere": {"type": "object"}}),
            json!({"$ref": "#/$defs/missing"}),
            json!({"type": "strin"}),
        ] {
            assert_eq!(pruned(node.clone()), node);
        }
        // The links of the chain are written forwards or backwards.
        for step in [1_i32, -1] {
            let mut chain = json!({"$ref": "#/$defs/50", "$defs": {}});
            for index in 0..=100_i32 {
                let next = format!("#/$defs/{}", index + step);
                let is_last = index == 0 || index == 100;
                let link = json!({"type": "array", "minItems": 1, "items": {"$ref": next}});
                chain["$defs"][index.to_string()] = if is_last { json!({"type": "null"}) } else { link };
            }
            assert_eq!(pruned(chain.clone()), chain);
        }
    }
}

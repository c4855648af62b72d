//! Schemas that no finite text matches, as each value would have to contain another of its own kind.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::form::may_be;
use crate::subschemas;

/// Rounds over what is referred to. Beyond them lie chains of references that are written in no order.
const MAX_ROUNDS: usize = 16;

/// Makes of each place that nothing finite matches `false`, which the parser leaves out where it may.
pub(crate) fn prune(whole: &mut Value) {
    let Some(targets) = Targets::of(whole) else { return };
    if targets.are_finite.values().any(|is_finite| !is_finite) {
        targets.prune(whole);
    }
}

/// What the references of a schema lead to. What is not known is taken for finite.
struct Targets {
    are_finite: HashMap<String, bool>,
}

impl Targets {
    /// None if it does not come to an end soon.
    fn of(whole: &Value) -> Option<Self> {
        let mut found = Vec::new();
        references(whole, &mut found);
        found.retain(|(_, target)| target.is_some());
        // Each once: many may lead to one large place.
        let mut seen = HashSet::new();
        found.retain(|(reference, _)| seen.insert(reference.clone()));
        let mut targets =
            Self { are_finite: found.iter().map(|(reference, _)| (reference.clone(), false)).collect() };
        for round in 0..MAX_ROUNDS {
            let mut has_changed = false;
            for index in 0..found.len() {
                // A chain may be written forwards or backwards.
                let index = if round % 2 == 0 { found.len() - 1 - index } else { index };
                let (reference, target) = &found[index];
                if !targets.are_finite[reference] && target.is_some_and(|target| targets.is_finite(target)) {
                    targets.are_finite.insert(reference.clone(), true);
                    has_changed = true;
                }
            }
            if !has_changed {
                return Some(targets);
            }
        }
        None
    }

    /// Whether some finite value may match, as far as it is known.
    fn is_finite(&self, schema: &Value) -> bool {
        let Value::Object(map) = schema else { return *schema != Value::Bool(false) };
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        map.get("$ref").and_then(Value::as_str).is_none_or(|to| self.are_finite.get(to) != Some(&false))
            && list("allOf").is_none_or(|all| all.iter().all(|part| self.is_finite(part)))
            && ["anyOf", "oneOf"].into_iter().all(|keyword| {
                list(keyword).is_none_or(|parts| parts.iter().any(|part| self.is_finite(part)))
            })
            && self.has_finite_type(map)
    }

    fn has_finite_type(&self, map: &Map<String, Value>) -> bool {
        ["null", "boolean", "number", "integer", "string"].into_iter().any(|kind| may_be(map, kind))
            || may_be(map, "array") && self.has_finite_items(map)
            || may_be(map, "object") && self.has_finite_properties(map)
            // The parser says what is wrong with it.
            || !["array", "object"].into_iter().any(|kind| may_be(map, kind))
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
        let Some(Value::Object(properties)) = map.get("properties") else { return true };
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        required
            .filter_map(Value::as_str)
            .all(|name| properties.get(name).is_none_or(|property| self.is_finite(property)))
    }

    fn prune(&self, schema: &mut Value) {
        if !self.is_finite(schema) {
            *schema = Value::Bool(false);
            return;
        }
        let Value::Object(map) = schema else { return };
        for (keyword, value) in map.iter_mut() {
            subschemas::of_mut(keyword, value).into_iter().for_each(|(_, inner)| self.prune(inner));
        }
    }
}

/// All references within the whole schema, with what they lead to there.
fn references<'a>(whole: &'a Value, found: &mut Vec<(String, Option<&'a Value>)>) {
    let mut waiting = vec![whole];
    while let Some(schema) = waiting.pop() {
        let Value::Object(map) = schema else { continue };
        if let Some(reference) = map.get("$ref").and_then(Value::as_str)
            && let Some(fragment) = reference.strip_prefix('#')
        {
            found.push((reference.to_owned(), whole.pointer(fragment)));
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
        prune(&mut schema);
        schema
    }

    #[test]
    fn what_needs_itself_is_false() {
        let node = json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]});
        let of_node = |schema: Value| {
            let mut schema = schema;
            schema["$defs"] = json!({"n": node});
            pruned(schema)
        };
        assert_eq!(of_node(json!({"$ref": "#/$defs/n"})), json!(false));
        assert_eq!(of_node(json!({"allOf": [{"$ref": "#/$defs/n"}]})), json!(false));
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
    fn what_may_end_stays_as_it_is() {
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
        // A chain by itself, in the order in which it is written or against it.
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

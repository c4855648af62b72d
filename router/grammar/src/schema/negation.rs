//! Schemas of the values that another schema excludes.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::schema::document::{
    ALL_KINDS, ARRAY, BOOLEAN, Document, FRACTION, INTEGER, OBJECT, STRING, has_effect, kind, kinds_of_type,
    listed, of_kinds,
};
use crate::schema::overlap::{is_closed, properties};

/// Most schemas that stand for one, and most alternatives that the rules of one schema may make.
pub(crate) const MAX_ALTERNATIVES: usize = 64;
/// Most bytes of an expression for the strings that a list excludes.
const MAX_PATTERN_BYTES: usize = 16 * 1024;
/// Deepest schema that is negated.
const MAX_DEPTH: usize = 16;
/// From here on doubles cannot represent all integers.
const FIRST_INEXACT: f64 = 9_007_199_254_740_992.0;

/// The rules of a schema that must be negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    All,
    /// At least one. Values that violate only the others are then not found.
    Some,
}

impl Document {
    /// Returns schemas that together match only values that `schema` excludes. They match all such values, except
    /// some whose exclusion no schema can express, such as fractions beside integers.
    ///
    /// `beside` holds schemas that the values also match. Returns `None` if too few rules of the schema can be
    /// negated.
    pub(crate) fn negated(&self, schema: &Value, beside: &[&Value], rules: Rules) -> Option<Vec<Value>> {
        self.negated_at(schema, &self.conjuncts(beside), rules, 0)
    }

    fn negated_at(
        &self,
        schema: &Value,
        beside: &[&Value],
        rules: Rules,
        depth: usize,
    ) -> Option<Vec<Value>> {
        if depth > MAX_DEPTH || !self.may_work() {
            return None;
        }
        let negated_at =
            |schema: &Value, beside: &[&Value]| self.negated_at(schema, beside, rules, depth + 1);
        let map = match schema {
            Value::Bool(true) => return Some(Vec::new()),
            Value::Bool(false) => return Some(vec![json!({})]),
            other => other.as_object()?,
        };
        let (mut found, mut has_left_out) = (Vec::new(), false);
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            found = negated_at(self.target(reference)?, beside)?;
            if self.ignores_siblings() {
                return Some(found);
            }
        }
        if let Some(values) = listed(schema) {
            found.extend(self.other_values(&values, beside, rules)?);
        }
        for (keyword, rule) in map.iter().filter(|(keyword, _)| has_effect(keyword)) {
            match self.negated_rule(map, keyword, rule, beside, &negated_at) {
                Some(others) => found.extend(others),
                None if rules == Rules::Some => has_left_out = true,
                None => return None,
            }
            if found.len() > MAX_ALTERNATIVES {
                return None;
            }
        }
        (!has_left_out || !found.is_empty()).then_some(found)
    }

    /// Returns schemas of the values that violate one rule of the schema `map`.
    fn negated_rule(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
        rule: &Value,
        beside: &[&Value],
        negated_at: &impl Fn(&Value, &[&Value]) -> Option<Vec<Value>>,
    ) -> Option<Vec<Value>> {
        let mut found = Vec::new();
        match keyword {
            "$ref" | "const" | "enum" => {}
            "type" => found.extend(of_kinds(self.kinds(beside, 0) & !widened(kinds_of_type(rule)))),
            "required" => {
                let names = rule.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
                found.extend(
                    names.into_iter().map(|name| json!({"type": "object", "properties": {name: false}})),
                );
            }
            "properties" => {
                for (name, inner) in rule.as_object()? {
                    let base = properties(beside, name);
                    // A property that must be absent cannot violate the rule.
                    if base.contains(&&Value::Bool(false)) {
                        continue;
                    }
                    let others = negated_at(inner, &self.conjuncts(&base))?;
                    found.extend(others.into_iter().map(
                        |other| json!({"type": "object", "properties": {name: other}, "required": [name]}),
                    ));
                }
            }
            "additionalProperties" if *rule == false => found = other_properties(map, beside)?,
            "additionalProperties" if *rule == true => {}
            "allOf" => {
                for part in rule.as_array()? {
                    found.extend(negated_at(part, beside)?);
                }
            }
            "anyOf" => {
                let each = rule.as_array()?.iter().map(|part| Some(any_of(negated_at(part, beside)?)));
                found.push(json!({"allOf": each.collect::<Option<Vec<Value>>>()?}));
            }
            _ => found.push(other_bound(keyword, rule)?),
        }
        Some(found)
    }

    /// Returns schemas of the values that are not listed.
    fn other_values(&self, values: &[&Value], beside: &[&Value], rules: Rules) -> Option<Vec<Value>> {
        // The values that are left of a list are better than a rule that excludes some.
        if let Some(all) = beside.iter().find_map(|part| listed(part)) {
            let schema = json!({"enum": values});
            let mut left = Vec::new();
            for value in all {
                if !self.allows(&schema, value)? {
                    left.push(value);
                }
            }
            return Some(if left.is_empty() { Vec::new() } else { vec![json!({"enum": left})] });
        }
        let kinds = self.kinds(beside, 0);
        let listed_kinds = values.iter().map(|value| kind(value)).fold(0, |all, kind| all | kind);
        // There is no schema of the other lists or objects.
        if rules == Rules::All && kinds & listed_kinds & (ARRAY | OBJECT) != 0 {
            return None;
        }
        let mut found: Vec<Value> = of_kinds(kinds & !widened(listed_kinds)).into_iter().collect();
        if kinds & listed_kinds & BOOLEAN != 0 {
            let left = [true, false].into_iter().filter(|left| !values.contains(&&Value::Bool(*left)));
            found.extend(left.map(|left| json!({"const": left})));
        }
        if kinds & listed_kinds & STRING != 0 {
            let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
            found.push(json!({"type": "string", "pattern": pattern_of_others(&texts)?}));
        }
        if kinds & listed_kinds & (INTEGER | FRACTION) != 0 {
            found.extend(other_numbers(values)?);
        }
        Some(found)
    }
}

/// Returns one schema that matches what any of several match.
pub(crate) fn any_of(mut alternatives: Vec<Value>) -> Value {
    match alternatives.len() {
        0 => Value::Bool(false),
        1 => alternatives.swap_remove(0),
        _ => json!({"anyOf": alternatives}),
    }
}

/// Adds the kinds that a schema cannot tell from these.
fn widened(kinds: u8) -> u8 {
    if kinds & (INTEGER | FRACTION) != 0 { kinds | INTEGER | FRACTION } else { kinds & ALL_KINDS }
}

/// Returns schemas of the objects with a property that `map`, which allows no others, does not list.
fn other_properties(map: &Map<String, Value>, beside: &[&Value]) -> Option<Vec<Value>> {
    if map.contains_key("patternProperties") {
        return None;
    }
    let own = map.get("properties").and_then(Value::as_object);
    // Only if the other schemas list all names can one of them be required.
    let listed = beside.iter().find(|part| is_closed(part))?.get("properties").and_then(Value::as_object);
    let names =
        listed.into_iter().flat_map(Map::keys).filter(|name| own.is_none_or(|own| !own.contains_key(*name)));
    Some(names.map(|name| json!({"type": "object", "required": [name]})).collect())
}

/// Returns the schema of the values beyond a bound.
fn other_bound(keyword: &str, rule: &Value) -> Option<Value> {
    let number = || rule.as_f64().filter(|number| number.abs() < FIRST_INEXACT).map(|_| rule.clone());
    let below = || Some(rule.as_u64()?.checked_sub(1).map_or(Value::Bool(false), Value::from));
    let above = || Some(Value::from(rule.as_u64()?.checked_add(1)?));
    let (kind, opposite, bound) = match keyword {
        "minimum" => ("number", "exclusiveMaximum", number()?),
        "maximum" => ("number", "exclusiveMinimum", number()?),
        "exclusiveMinimum" => ("number", "maximum", number()?),
        "exclusiveMaximum" => ("number", "minimum", number()?),
        "minLength" => ("string", "maxLength", below()?),
        "maxLength" => ("string", "minLength", above()?),
        "minItems" => ("array", "maxItems", below()?),
        "maxItems" => ("array", "minItems", above()?),
        "minProperties" => ("object", "maxProperties", below()?),
        _ => return None,
    };
    // A bound of zero excludes nothing.
    Some(if bound == false { bound } else { json!({"type": kind, opposite: bound}) })
}

/// Returns schemas of the numbers between those listed.
fn other_numbers(values: &[&Value]) -> Option<Vec<Value>> {
    let mut numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
    numbers.sort_by(f64::total_cmp);
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    if first <= -FIRST_INEXACT || last >= FIRST_INEXACT {
        return None;
    }
    let number = |bound: f64| if bound.fract() == 0.0 { json!(bound as i64) } else { json!(bound) };
    let mut found = vec![json!({"type": "number", "exclusiveMaximum": number(first)})];
    let gaps = numbers.windows(2).filter(|pair| pair[0] < pair[1]);
    found.extend(gaps.map(
        |pair| json!({"type": "number", "exclusiveMinimum": number(pair[0]), "exclusiveMaximum": number(pair[1])}),
    ));
    found.push(json!({"type": "number", "exclusiveMinimum": number(last)}));
    Some(found)
}

/// Returns an expression for all texts except these: for each beginning of one, the texts that leave it there.
fn pattern_of_others(texts: &[&str]) -> Option<String> {
    let literal = |char: char| format!("\\x{{{:x}}}", u32::from(char));
    let beginnings: BTreeSet<&str> =
        texts.iter().flat_map(|text| (0..=text.len()).filter_map(|end| text.get(..end))).collect();
    let mut pattern = String::from("^(?:");
    for (idx, beginning) in beginnings.iter().enumerate() {
        let next: BTreeSet<char> =
            beginnings.iter().filter_map(|longer| longer.strip_prefix(beginning)?.chars().next()).collect();
        pattern.push_str(if idx == 0 { "" } else { "|" });
        pattern.extend(beginning.chars().map(literal));
        pattern.push_str("(?:");
        match next.is_empty() {
            true => pattern.push_str("(?s:.)"),
            false => {
                pattern.push_str("[^");
                pattern.extend(next.into_iter().map(literal));
                pattern.push(']');
            }
        }
        // A text that is listed must go on. Another one may end.
        pattern.push_str(if texts.contains(beginning) { "(?s:.)*)" } else { "(?s:.)*)?" });
        if pattern.len() > MAX_PATTERN_BYTES {
            return None;
        }
    }
    pattern.push_str(")$");
    Some(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negated(schema: Value, beside: Value) -> Option<Vec<Value>> {
        Document::new(&json!({"$defs": {"text": {"type": "string"}}})).negated(
            &schema,
            &[&beside],
            Rules::All,
        )
    }

    #[test]
    fn each_rule_is_negated() {
        let closed = json!({"properties": {"a": {}, "b": {}}, "additionalProperties": false});
        for (schema, beside, expected) in [
            (json!(true), json!({}), json!([])),
            (json!({"description": "x", "x-own": 1}), json!({}), json!([])),
            (
                json!({"type": "integer"}),
                json!({"type": ["string", "number"]}),
                json!([{"type": ["string"]}]),
            ),
            (
                json!({"$ref": "#/$defs/text"}),
                json!({"type": ["string", "null"]}),
                json!([{"type": ["null"]}]),
            ),
            (
                json!({"enum": ["a", 1.0]}),
                json!({"enum": ["a", "b", 1, null]}),
                json!([{"enum": ["b", null]}]),
            ),
            (json!({"const": true}), json!({"type": "boolean"}), json!([{"const": false}])),
            (
                json!({"required": ["a", "b"]}),
                json!({}),
                json!([{"type": "object", "properties": {"a": false}},
                       {"type": "object", "properties": {"b": false}}]),
            ),
            (
                json!({"properties": {"k": {"const": 1}}}),
                json!({"properties": {"k": {"enum": [1, 2]}}}),
                json!([{"type": "object", "properties": {"k": {"enum": [2]}}, "required": ["k"]}]),
            ),
            (
                json!({"properties": {"a": true}, "additionalProperties": false}),
                closed,
                json!([{"type": "object", "required": ["b"]}]),
            ),
            (
                json!({"enum": [2, 5.5]}),
                json!({"type": "number"}),
                json!([{"type": "number", "exclusiveMaximum": 2},
                       {"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 5.5},
                       {"type": "number", "exclusiveMinimum": 5.5}]),
            ),
            (json!({"maxLength": 3}), json!({}), json!([{"type": "string", "minLength": 4}])),
            (json!({"minItems": 0}), json!({}), json!([false])),
        ] {
            assert_eq!(negated(schema.clone(), beside).map(Value::Array), Some(expected), "{schema}");
        }
    }

    #[test]
    fn rules_that_cannot_be_negated_are_found() {
        for schema in [
            json!({"pattern": "a"}),
            json!({"additionalProperties": false}),
            json!({"items": {"type": "null"}}),
            json!({"minimum": 1e300}),
            json!({"not": {}}),
            json!({"const": []}),
            json!({"$ref": "#/$defs/missing"}),
        ] {
            assert_eq!(negated(schema.clone(), json!({})), None, "{schema}");
        }
    }

    #[test]
    fn a_pattern_matches_all_texts_but_those_listed() {
        let texts = ["ab", "abc", "x", "", "é\n"];
        let pattern = pattern_of_others(&texts).unwrap();
        let expression = pattern.trim_start_matches('^').trim_end_matches('$');
        let automaton = crate::regex::automaton::Automaton::from_expression(expression).unwrap();
        let matches = |text: &str| {
            let mut state = crate::regex::automaton::Automaton::START;
            text.bytes().all(|byte| {
                automaton.next(state, byte).is_some_and(|next| {
                    state = next;
                    true
                })
            }) && automaton.accepts(state)
        };
        for text in texts {
            assert!(!matches(text), "{text:?}");
        }
        for text in ["a", "abd", "abcd", "xx", "é", "é\n\n", "b", "\n"] {
            assert!(matches(text), "{text:?}");
        }
    }
}

//! Expresses rules about the names of properties through keywords that the parser supports.

use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Value, json};

use crate::regex::matcher::Matcher;
use crate::regex::portable::portable;
use crate::schema::keywords::IGNORED_KEYWORDS;
use crate::schema::unsupported::UnsupportedKeyword;

/// Bytes of schemas that copying may still add. Each listed name gets a copy of the schema for all properties.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    pub(crate) bytes_left: usize,
}

/// The names that a `propertyNames` schema allows.
enum Names {
    Any,
    Listed(Vec<String>),
    Matching(String),
}

/// Replaces `propertyNames` if it allows any name, lists the names, or has a pattern or a length for them.
///
/// Each listed name, or the pattern, gets the schema of additional properties, and other properties are forbidden.
pub(crate) fn rewrite(
    schema: &mut Map<String, Value>,
    copies: &mut CopyBudget,
) -> Result<(), UnsupportedKeyword> {
    let Some(names) = schema.get("propertyNames").and_then(allowed_names) else { return refused(schema) };
    if !matches!(names, Names::Any) && schema.contains_key("patternProperties") {
        return refused(schema);
    }
    let mut properties = match schema.get("properties") {
        None => Map::new(),
        Some(Value::Object(properties)) => properties.clone(),
        Some(_) => return refused(schema),
    };
    match names {
        Names::Any => {}
        Names::Listed(names) => {
            properties.retain(|name, _| names.contains(name));
            let each = take_additional(schema);
            let num_bytes = names.len().saturating_mul(each.to_string().len());
            copies.bytes_left = copies.bytes_left.checked_sub(num_bytes).ok_or_else(|| {
                UnsupportedKeyword::new(
                    "propertyNames",
                    " with this many names beside an `additionalProperties` of this size",
                )
            })?;
            if each != false {
                for name in names {
                    properties.entry(name).or_insert_with(|| each.clone());
                }
            }
            set_only(schema, "properties", properties);
        }
        Names::Matching(pattern) => {
            let others = schema.get("additionalProperties");
            if properties.is_empty() {
                let each = take_additional(schema);
                set_only(schema, "patternProperties", Map::from_iter([(pattern, each)]));
            } else if others.is_none_or(Value::is_boolean) {
                // The parser would apply the schema of the pattern to the listed properties too.
                let Some(regex) = Matcher::new(&pattern) else { return refused(schema) };
                properties
                    .iter_mut()
                    .filter(|(name, _)| !regex.is_match(name))
                    .for_each(|(_, rule)| *rule = false.into());
                let is_closed = take_additional(schema) == false;
                if !is_closed {
                    schema.insert("patternProperties".to_owned(), json!({pattern: true}));
                }
                set_only(schema, "properties", properties);
            } else {
                return refused(schema);
            }
        }
    }
    schema.shift_remove("propertyNames");
    Ok(())
}

fn refused(schema: &Map<String, Value>) -> Result<(), UnsupportedKeyword> {
    if schema.contains_key("propertyNames") {
        Err(UnsupportedKeyword::new("propertyNames", ""))
    } else {
        Ok(())
    }
}

/// Merges patterns that match only names in `properties`, such as `^(a|b)$` beside `a` and `b`, into those properties.
///
/// Otherwise the parser would find only after a comma that no name is left.
pub(crate) fn merge_patterns(schema: &mut Map<String, Value>, copies: &mut CopyBudget) {
    if !schema.contains_key("patternProperties") {
        return;
    }
    let Some(Value::Object(mut properties)) = schema.get("properties").cloned() else { return };
    let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") else { return };
    patterns.retain(|pattern, inner| {
        let names = all_names(pattern).filter(|names| names.iter().all(|name| properties.contains_key(name)));
        let Some(names) = names else { return true };
        let num_bytes = names.len().saturating_mul(inner.to_string().len());
        // Beyond the budget the pattern is kept.
        let Some(bytes_left) = copies.bytes_left.checked_sub(num_bytes) else { return true };
        copies.bytes_left = bytes_left;
        for name in &names {
            let own = properties.get_mut(name).map(Value::take);
            properties[name] = json!({"allOf": [own, inner]});
        }
        false
    });
    if patterns.is_empty() {
        schema.shift_remove("patternProperties");
    }
    schema.insert("properties".to_owned(), Value::Object(properties));
}

/// Returns the names that a pattern matches, if they are few.
pub(crate) fn all_names(pattern: &str) -> Option<Vec<String>> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let HirKind::Concat(parts) = hir.kind() else { return None };
    let [first, middle @ .., last] = parts.as_slice() else { return None };
    if *first.kind() != HirKind::Look(Look::Start) || *last.kind() != HirKind::Look(Look::End) {
        return None;
    }
    let middle = Hir::concat(middle.to_vec());
    if !middle.properties().look_set().is_empty() {
        return None;
    }
    let names = Extractor::new().extract(&middle);
    let literals = names.literals().filter(|_| names.is_exact())?;
    literals.iter().map(|literal| String::from_utf8(literal.as_bytes().to_vec()).ok()).collect()
}

/// Removes and returns the schema of additional properties.
fn take_additional(schema: &mut Map<String, Value>) -> Value {
    schema.shift_remove("additionalProperties").unwrap_or(Value::Bool(true))
}

/// Sets a keyword, and forbids additional properties.
fn set_only(schema: &mut Map<String, Value>, keyword: &str, entries: Map<String, Value>) {
    schema.insert(keyword.to_owned(), Value::Object(entries));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
}

/// Returns the names that a `propertyNames` schema allows, or `None` if it has any other rule.
fn allowed_names(names: &Value) -> Option<Names> {
    let schema = match names {
        Value::Bool(true) => return Some(Names::Any),
        Value::Bool(false) => return Some(Names::Listed(Vec::new())),
        names => names.as_object()?,
    };
    let has_effect = |(keyword, value): &(&String, &Value)| {
        let is_string = |kind: &Value| kind.as_str() == Some("string");
        match keyword.as_str() {
            "type" => !is_string(value) && !value.as_array().is_some_and(|kinds| kinds.iter().any(is_string)),
            other => !IGNORED_KEYWORDS.contains(&other) && !value.is_null(),
        }
    };
    let rules: Vec<(&str, &Value)> =
        schema.iter().filter(has_effect).map(|(keyword, value)| (keyword.as_str(), value)).collect();
    match rules[..] {
        [] => Some(Names::Any),
        // Names are strings, so other values allow no name.
        [("enum", Value::Array(values))] => {
            Some(Names::Listed(values.iter().filter_map(Value::as_str).map(str::to_owned).collect()))
        }
        [("const", value)] => Some(Names::Listed(value.as_str().map(str::to_owned).into_iter().collect())),
        [("pattern", Value::String(pattern))] => portable(pattern).ok().map(Names::Matching),
        [("minLength", Value::Number(least))] if least.is_u64() => {
            Some(Names::Matching(format!("^(?s:.){{{least},}}$")))
        }
        [("maxLength", Value::Number(most))] if most.is_u64() => {
            Some(Names::Matching(format!("^(?s:.){{0,{most}}}$")))
        }
        [("minLength", Value::Number(least)), ("maxLength", Value::Number(most))]
        | [("maxLength", Value::Number(most)), ("minLength", Value::Number(least))]
            if least.as_u64()? <= most.as_u64()? =>
        {
            Some(Names::Matching(format!("^(?s:.){{{least},{most}}}$")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rewritten(mut schema: Value) -> Value {
        let outcome =
            rewrite(schema.as_object_mut().expect("an object"), &mut CopyBudget { bytes_left: 200 });
        assert_eq!(outcome, Ok(()));
        schema
    }

    #[test]
    fn property_names_are_removed_or_become_properties() {
        let number = json!({"type": "number"});
        for (names, expected) in [
            (json!(true), json!({"additionalProperties": number})),
            (json!({}), json!({"additionalProperties": number})),
            (json!({"type": "string", "description": "x"}), json!({"additionalProperties": number})),
            (
                json!({"enum": ["a", 1, "b"], "type": "string"}),
                json!({"properties": {"a": number, "b": number}, "additionalProperties": false}),
            ),
            (json!({"const": "a"}), json!({"properties": {"a": number}, "additionalProperties": false})),
            (
                json!({"pattern": r"^\d"}),
                json!({"patternProperties": {"^[0-9]": number}, "additionalProperties": false}),
            ),
        ] {
            let schema = json!({"propertyNames": names, "additionalProperties": number});
            assert_eq!(rewritten(schema), expected, "{names}");
        }
        let all = rewritten(json!({"propertyNames": {"const": "a"}, "required": ["a"]}));
        assert_eq!(all, json!({"required": ["a"], "properties": {"a": true}, "additionalProperties": false}));
    }

    #[test]
    fn patterns_that_match_only_properties_are_merged_with_them() {
        let merged = |mut schema: Value| {
            merge_patterns(schema.as_object_mut().expect("an object"), &mut CopyBudget { bytes_left: 200 });
            schema
        };
        let (number, text) = (json!({"type": "number"}), json!({"type": "string"}));
        let both = json!({"allOf": [number, text]});
        assert_eq!(
            merged(json!({"patternProperties": {"^(a|bc?)$": text, "^x": true},
                          "properties": {"a": number, "b": number, "bc": number, "c": number}})),
            json!({"patternProperties": {"^x": true},
                   "properties": {"a": both, "b": both, "bc": both, "c": number}})
        );
        assert_eq!(
            merged(json!({"patternProperties": {"^é$": text}, "properties": {"é": number}})),
            json!({"properties": {"é": both}})
        );
        for pattern in ["a", "^a", "^a|b$", "^a+$", "^.$", r"^\d$", "^(^a|b)$", "(?m)^a$", "^", "^(a|x)$"] {
            let schema = json!({"patternProperties": {pattern: text}, "properties": {"a": true, "b": true}});
            assert_eq!(merged(schema.clone()), schema);
        }
    }

    #[test]
    fn listed_properties_obey_the_rule_too() {
        for (names, additional, expected) in [
            (
                json!({"enum": ["a", "c"]}),
                json!({"type": "null"}),
                json!({"properties": {"a": true, "c": {"type": "null"}}, "additionalProperties": false}),
            ),
            (json!(false), json!(true), json!({"properties": {}, "additionalProperties": false})),
            (
                json!({"maxLength": 1}),
                json!(true),
                json!({"properties": {"a": true, "bb": false}, "patternProperties": {"^(?s:.){0,1}$": true},
                       "additionalProperties": false}),
            ),
            (
                json!({"pattern": "^b"}),
                json!(false),
                json!({"properties": {"a": false, "bb": true}, "additionalProperties": false}),
            ),
        ] {
            let schema = json!({"propertyNames": names, "properties": {"a": true, "bb": true}, "additionalProperties": additional});
            assert_eq!(rewritten(schema), expected, "{names}");
        }
    }

    #[test]
    fn other_rules_about_names_are_refused() {
        for schema in [
            json!({"propertyNames": {"enum": ["a"], "pattern": "a"}}),
            json!({"propertyNames": {"pattern": "(?=a)"}}),
            json!({"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": true}}),
            json!({"propertyNames": {"pattern": "a"}, "properties": {"a": true}, "additionalProperties": {"type": "null"}}),
            json!({"propertyNames": {"type": "integer"}}),
        ] {
            let mut map = schema.as_object().expect("an object").clone();
            assert!(rewrite(&mut map, &mut CopyBudget { bytes_left: 200 }).is_err(), "{schema}");
            assert_eq!(Value::Object(map), schema);
        }
        let names: Vec<String> = (0..30).map(|index| format!("n{index}")).collect();
        let mut large = json!({"propertyNames": {"enum": names}, "additionalProperties": {"type": "null"}});
        let outcome = rewrite(large.as_object_mut().expect("an object"), &mut CopyBudget { bytes_left: 200 });
        assert!(outcome.is_err());
    }
}

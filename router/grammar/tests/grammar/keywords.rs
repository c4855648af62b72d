//! Outputs obey every supported keyword.

use serde_json::{Value, json};
use trunkline_grammar::{FORMATS, Grammar, IGNORED_KEYWORDS, KEYWORDS};

use crate::support::{check_outputs, check_schema, compiler, model};

const NUM_OUTPUTS: u64 = 30;

/// Returns a schema for each keyword. Many outputs would be invalid if the keyword were ignored.
fn schemas() -> Vec<(&'static str, Value)> {
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object", "additionalProperties": false, "required": ["value"],
            "properties": {"value": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        }},
    });
    let closed = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    vec![
        ("$ref", tree),
        (
            "additionalItems",
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                   "items": [{"type": "null"}], "additionalItems": {"type": "boolean"}, "maxItems": 4}),
        ),
        (
            "additionalProperties",
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}),
        ),
        ("allOf", json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 17}]})),
        (
            "anyOf",
            json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]}),
        ),
        ("const", json!({"const": {"a": [1, "é\n\"", null]}})),
        ("enum", json!({"enum": ["red", "green", 3, null, {"a": 1.5}, [true]]})),
        ("exclusiveMaximum", json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 4})),
        ("exclusiveMinimum", json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})),
        ("format", json!({"type": "string", "format": "date"})),
        ("items", json!({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 5})),
        ("maxItems", json!({"type": "array", "maxItems": 2, "items": {"type": "null"}})),
        ("maxLength", json!({"type": "string", "maxLength": 3})),
        (
            "maxProperties",
            json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "null"}}),
        ),
        ("maximum", json!({"type": "number", "minimum": 0.5, "maximum": 12.25})),
        ("minItems", json!({"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "boolean"}})),
        ("minLength", json!({"type": "string", "minLength": 4, "maxLength": 9})),
        (
            "minProperties",
            json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}}),
        ),
        ("minimum", json!({"type": "integer", "minimum": 9, "maximum": 1200})),
        ("multipleOf", json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000})),
        (
            "oneOf",
            json!({"oneOf": [closed(json!({"kind": {"const": "a"}, "x": {"type": "null"}}), json!(["kind"])),
                             closed(json!({"kind": {"const": "b"}, "y": {"type": "null"}}), json!(["kind"]))]}),
        ),
        ("pattern", json!({"type": "string", "pattern": "^[A-Z]{2}-\\d+(é|\")$"})),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}},
                   "additionalProperties": false, "maxProperties": 3}),
        ),
        (
            "prefixItems",
            json!({"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"enum": ["x"]},
                   "minItems": 2, "maxItems": 4}),
        ),
        (
            "properties",
            closed(
                json!({"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b\"\n": {"type": "null"}}),
                json!([]),
            ),
        ),
        (
            "required",
            closed(
                json!({"a": {"type": "boolean"}, "b": {"type": "boolean"}, "c": {"type": "null"}}),
                json!(["c", "a"]),
            ),
        ),
        ("type", json!({"type": ["boolean", "null", "string"], "maxLength": 5})),
    ]
}

#[test]
fn outputs_obey_every_keyword() {
    let schemas = schemas();
    assert_eq!(schemas.iter().map(|(keyword, _)| *keyword).collect::<Vec<_>>(), KEYWORDS);
    let model = model();
    let compiler = compiler(&model);
    for (keyword, schema) in &schemas {
        let check = check_schema(keyword, schema, &model, &compiler, NUM_OUTPUTS).unwrap();
        assert_eq!(check.faults, [""; 0]);
        let num_finished = check.num_finished;
        assert!(num_finished as u64 * 2 > NUM_OUTPUTS, "{keyword}: {num_finished} of {NUM_OUTPUTS} finished");
    }
}

#[test]
fn outputs_obey_every_format() {
    let model = model();
    let compiler = compiler(&model);
    let mut faults = Vec::new();
    for format in FORMATS {
        let schema = json!({"type": "string", "format": format});
        let check = check_schema(format, &schema, &model, &compiler, 4 * NUM_OUTPUTS).unwrap();
        assert!(check.num_finished > 0, "{format}: none finished");
        faults.extend(check.faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn ignored_keywords_have_no_effect() {
    let model = model();
    let compiler = compiler(&model);
    for keyword in IGNORED_KEYWORDS {
        let value = match keyword {
            "$schema" => json!("https://json-schema.org/draft/2020-12/schema"),
            "$defs" | "definitions" => json!({"unused": {"type": "null"}}),
            "$id" | "id" => json!("urn:example:of-an-id"),
            "deprecated" | "readOnly" | "writeOnly" => json!(true),
            "examples" => json!([1, "a"]),
            _ => json!("text"),
        };
        let schema = json!({"type": "integer", "minimum": 11, "maximum": 13, keyword: value});
        let check = check_schema(keyword, &schema, &model, &compiler, NUM_OUTPUTS).unwrap();
        assert_eq!(check.faults, [""; 0]);
        assert_eq!(check.num_finished as u64, NUM_OUTPUTS, "{keyword}");
    }
}

/// Returns schemas whose keywords are expressed through others.
fn rewritten() -> Vec<(&'static str, Value)> {
    let address = json!({"type": "object", "additionalProperties": false, "required": ["country"], "properties": {
        "country": {"enum": ["CH", "US", "FR"]}, "zip": {"type": "string", "maxLength": 6}, "canton": {"enum": ["BE", "GE"]}}});
    let with = |base: &Value, more: Value| {
        let mut schema = base.as_object().unwrap().clone();
        schema.extend(more.as_object().unwrap().clone());
        Value::Object(schema)
    };
    let open = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": 1}},
        "additionalProperties": {"type": "null"}});
    let closed = with(&open, json!({"additionalProperties": false}));
    let is = |name: &str, value: &str| json!({"properties": {name: {"const": value}}, "required": [name]});
    vec![
        (
            "a condition on a value of a list",
            with(
                &address,
                json!({"if": is("country", "US"), "then": {"required": ["zip"], "properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
                "else": {"properties": {"zip": false}}}),
            ),
        ),
        (
            "conditions that follow each other",
            with(
                &address,
                json!({"allOf": [
                {"if": is("country", "CH"), "then": {"required": ["canton"]}},
                {"if": is("country", "FR"), "else": {"properties": {"canton": {"const": "BE"}}}}]}),
            ),
        ),
        (
            "a condition on any text",
            json!({"type": "object", "properties": {"k": {"type": "string", "maxLength": 3}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
                "required": ["k"], "additionalProperties": false, "if": {"properties": {"k": {"enum": ["a", "ab"]}}}, "then": {"required": ["n"]}, "else": {"properties": {"n": false}}}),
        ),
        (
            "a condition on presence",
            with(
                &closed,
                json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
            ),
        ),
        (
            "a condition on the type",
            json!({"type": ["integer", "string", "null"], "if": {"type": "string"}, "then": {"maxLength": 2}, "else": {"maximum": 7, "minimum": 0}}),
        ),
        (
            "dependencies",
            with(&open, json!({"dependencies": {"a": ["b"], "b": {"properties": {"c": false}}}})),
        ),
        ("dependentRequired", with(&closed, json!({"dependentRequired": {"a": ["b", "c"], "c": ["a"]}}))),
        (
            "dependentSchemas",
            with(
                &closed,
                json!({"dependentSchemas": {"b": {"required": ["c"], "properties": {"a": false}}}}),
            ),
        ),
        (
            "not: a type",
            json!({"type": ["null", "boolean", "array"], "maxItems": 1, "items": {"type": "null"}, "not": {"type": "null"}}),
        ),
        ("not: a value", json!({"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [3, 5]}})),
        ("not: texts", json!({"type": "string", "maxLength": 2, "not": {"enum": ["a", "ab", ""]}})),
        ("not: both properties", with(&closed, json!({"not": {"required": ["a", "b"]}}))),
        (
            "oneOf: exactly one property",
            with(
                &closed,
                json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c", "a"]}]}),
            ),
        ),
        (
            "oneOf: closed objects",
            json!({"type": "object", "oneOf": [
            {"properties": {"a": {"type": "null"}}, "additionalProperties": false},
            {"properties": {"b": {"type": "null"}, "c": {"type": "null"}}, "additionalProperties": false}]}),
        ),
        (
            "oneOf: ranges of numbers",
            json!({"type": "integer", "oneOf": [{"minimum": 3, "maximum": 7}, {"minimum": 6, "maximum": 12}]}),
        ),
        (
            "oneOf: references",
            json!({"$defs": {"a": {"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}, "additionalProperties": false},
            "b": {"type": "null"}}, "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
        ),
        ("propertyNames", with(&open, json!({"propertyNames": {"enum": ["a", "b", "x"]}}))),
        ("minProperties of a closed object", with(&closed, json!({"minProperties": 2}))),
        ("minProperties of an open object", with(&open, json!({"minProperties": 2}))),
        ("maxProperties of a closed object", with(&closed, json!({"maxProperties": 1}))),
        ("both counts of an open object", with(&open, json!({"minProperties": 1, "maxProperties": 2}))),
    ]
}

#[test]
fn outputs_obey_keywords_that_are_expressed_through_others() {
    let model = model();
    let compiler = compiler(&model);
    for (name, schema) in rewritten() {
        let check = check_schema(name, &schema, &model, &compiler, 2 * NUM_OUTPUTS)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(check.faults, [""; 0]);
        let num_finished = check.num_finished;
        assert!(num_finished as u64 > NUM_OUTPUTS, "{name}: {num_finished} of {} finished", 2 * NUM_OUTPUTS);
    }
}

#[test]
fn a_pattern_that_looks_ahead_is_obeyed() {
    let model = model();
    let compiler = compiler(&model);
    let schema = json!({"type": "string", "maxLength": 6, "pattern": "^(?=.*[0-9])(?=.*[a-z])[a-z0-9]{3,}$"});
    // The validator has no look-ahead.
    let parts = ["^.*[0-9]", "^.*[a-z]", "^[a-z0-9]{3,}$"].map(|pattern| json!({"pattern": pattern}));
    let same = json!({"type": "string", "maxLength": 6, "allOf": parts});
    let constraint = compiler.compile(&Grammar::JsonSchema(schema.into())).unwrap();
    let check = check_outputs("look-ahead", &same, &model, &constraint, NUM_OUTPUTS);
    assert_eq!(check.faults, [""; 0]);
    assert!(check.num_finished as u64 * 2 > NUM_OUTPUTS, "{} finished", check.num_finished);
}

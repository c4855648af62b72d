//! Outputs obey every supported keyword.

use serde_json::{Value, json};
use trunkline_grammar::{FORMATS, IGNORED_KEYWORDS, KEYWORDS};

use crate::support::{check_schema, compiler, model};

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

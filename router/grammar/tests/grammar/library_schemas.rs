//! Schemas as clients' libraries write them, and the messages about those that are refused.

use serde_json::{Value, json};
use trunkline_grammar::{Grammar, GrammarError};

use crate::support::{check_outputs, compiler, model};

const NUM_OUTPUTS: u64 = 30;

/// Schemas as they are sent, each with a strict equivalent for the validator.
fn library_schemas() -> Vec<(Value, Value)> {
    let same = |schema: Value| (schema.clone(), schema);
    let names = json!({"type": "string", "enum": ["ab", "c"]});
    vec![
        same(
            json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"],
                    "patternProperties": {"^a$": {"type": "string", "pattern": "b"}}, "additionalProperties": false}),
        ),
        same(
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "string", "maxLength": 2}},
                    "patternProperties": {"^(a|b)$": {}}, "additionalProperties": false}),
        ),
        same(json!({"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 2,
                    "additionalProperties": {"type": "integer"}})),
        same(json!({"type": "object", "propertyNames": names, "additionalProperties": {"enum": [1, 2]},
                    "required": ["ab", "c"]})),
        same(json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "null"}})),
        same(json!({"type": "object", "propertyNames": {"pattern": r"^\d[ab]$"}, "maxProperties": 3,
                    "additionalProperties": {"type": "boolean"}})),
        same(json!({"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"})),
        same(
            json!({"type": "string", "format": "starts_with", "allOf": [{"pattern": "^a"}, {"pattern": "^.[bc]?$"}]}),
        ),
        same(json!({"type": "object", "dependentRequired": {}, "maxProperties": 1})),
        same(json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"not": {}}}})),
        same(json!({"type": "array", "items": {"type": "null"}, "minItems": 2.0, "maxItems": 3.0})),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "enum": null, "items": null}},
                   "required": null, "additionalProperties": null, "patternProperties": null}),
            json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        ),
        same(json!({"type": "string", "pattern": r"^\d{2}\s[^\d\s]\W\S$"})),
        (
            json!({"type": "string", "pattern": r"^[\w-.]{3}$"}),
            json!({"type": "string", "pattern": "^[0-9A-Za-z_.-]{3}$"}),
        ),
        same(json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {
            "type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}}})),
    ]
}

#[test]
fn outputs_obey_the_schemas_of_libraries() {
    let (model, compiler) = (model(), compiler(&model()));
    for (sent, strict) in library_schemas() {
        let name = sent.to_string();
        let constraint = compiler.compile(&Grammar::JsonSchema(sent.into()));
        let constraint = constraint.unwrap_or_else(|error| panic!("{name}: {error}"));
        let check = check_outputs(&name, &strict, &model, &constraint, NUM_OUTPUTS);
        assert_eq!(check.faults, [""; 0]);
        assert!(check.num_finished as u64 * 2 > NUM_OUTPUTS, "{name}: {} finished", check.num_finished);
    }
}

#[test]
fn refusals_name_the_keyword_and_the_fault() {
    let compiler = compiler(&model());
    let json = |schema: Value| Grammar::JsonSchema(schema.into());
    let needs_itself = json!({"$ref": "#/$defs/n", "$defs": {"n": {
        "type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}}});
    for (grammar, code, words) in [
        (
            json(json!({"properties": {"a": {"type": "string", "pattern": "é(?!b)"}}})),
            "unsupported_keyword",
            "keyword `pattern` at `#/properties/a` is not supported with look-around at character 2",
        ),
        (
            json(json!({"patternProperties": {"(?=a)": true}})),
            "unsupported_keyword",
            "keyword `patternProperties` at `#` is not supported with look-around at character 1",
        ),
        (
            json(json!({"pattern": "a(b"})),
            "invalid_schema",
            "`pattern` at `#` is not a regular expression: unclosed group at character 2",
        ),
        (
            json(json!({"multipleOf": 0.123_456_789_123})),
            "unsupported_keyword",
            "keyword `multipleOf` at `#` is not supported with so many digits",
        ),
        (
            json(json!({"propertyNames": {"pattern": "a", "maxLength": 3}})),
            "unsupported_keyword",
            "keyword `propertyNames` at `#`",
        ),
        (
            json(json!({"type": "string", "format": "iri"})),
            "unsupported_keyword",
            "`iri`; hint: use `pattern`",
        ),
        (
            json(needs_itself),
            "invalid_schema",
            "no finite text matches it, because a required part is `false` or requires itself again",
        ),
        (
            json(json!({"allOf": [{"type": "string", "pattern": "^a$"}, {"pattern": "^b$"}]})),
            "invalid_schema",
            "no text matches it, because patterns that apply together exclude each other",
        ),
        (
            Grammar::Regex("a(?=b)".into()),
            "invalid_schema",
            "expression: look-around at character 2 is not supported",
        ),
        (
            Grammar::Regex("a[b".into()),
            "invalid_schema",
            "expression: unclosed character class at character 2",
        ),
        (
            Grammar::Lark("root ::= select".into()),
            "invalid_schema",
            "invalid EBNF grammar: the rule `select` is not defined",
        ),
        (Grammar::Lark("start: /a(?=b)/".into()), "invalid_schema", "look-around"),
    ] {
        let error: GrammarError =
            compiler.compile(&grammar).err().unwrap_or_else(|| panic!("{grammar:?} is accepted"));
        let message = error.to_string();
        assert!(
            error.code() == code && message.contains(words),
            "{}: {message}\nnot {code}: {words}",
            error.code()
        );
    }
}

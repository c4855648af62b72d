//! What clients' libraries write is taken as they mean it, and what is refused is told in our words.

use serde_json::{Value, json};
use trunkline_grammar::{Grammar, GrammarError};

use crate::support::{check_outputs, compiler, model};

const NUM_OUTPUTS: u64 = 30;

/// Schemas as they are sent, and as a strict validator reads them.
fn forms() -> Vec<(Value, Value)> {
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
fn what_libraries_write_holds() {
    let (model, compiler) = (model(), compiler(&model()));
    for (sent, read) in forms() {
        let name = sent.to_string();
        let constraint = compiler.compile(&Grammar::JsonSchema(sent));
        let constraint = constraint.unwrap_or_else(|error| panic!("{name}: {error}"));
        let check = check_outputs(&name, &read, &model, &constraint, NUM_OUTPUTS);
        assert_eq!(check.faults, [""; 0]);
        assert!(check.num_finished as u64 * 2 > NUM_OUTPUTS, "{name}: {} finished", check.num_finished);
    }
}

#[test]
fn what_is_refused_is_told_in_our_words() {
    let compiler = compiler(&model());
    let json = |schema: Value| Grammar::JsonSchema(schema);
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
            "`pattern` at `#` is no regular expression: unclosed group at character 2",
        ),
        (
            json(json!({"multipleOf": 0.123_456_789_123})),
            "unsupported_keyword",
            "keyword `multipleOf` at `#` is not supported with so many digits",
        ),
        (
            json(json!({"propertyNames": {"maxLength": 3}})),
            "unsupported_keyword",
            "keyword `propertyNames` at `#`",
        ),
        (
            json(json!({"type": "string", "format": "nanoid"})),
            "unsupported_keyword",
            "`nanoid`; hint: use `pattern`",
        ),
        (
            json(needs_itself),
            "invalid_schema",
            "no finite text matches it: what it requires is `false`, or requires itself again",
        ),
        (
            json(json!({"allOf": [{"type": "string", "pattern": "^a$"}, {"pattern": "^b$"}]})),
            "invalid_schema",
            "no text matches it, as patterns that hold at once exclude each other",
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
            Grammar::Lark("root ::= select\nselect ::= \"SELECT \"".into()),
            "invalid_schema",
            "hint: a grammar is Lark, not EBNF or GBNF; it begins with `start: ...`",
        ),
        (Grammar::Lark("start: /a(?=b)/".into()), "invalid_schema", "look-around"),
    ] {
        let error: GrammarError =
            compiler.compile(&grammar).err().unwrap_or_else(|| panic!("{grammar:?} is taken"));
        let told = error.to_string();
        assert!(
            error.code() == code && told.contains(words),
            "{}: {told}\nnot {code}: {words}",
            error.code()
        );
    }
}

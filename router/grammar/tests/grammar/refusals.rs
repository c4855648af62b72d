//! Messages about grammars that are refused.

use serde_json::{Value, json};
use trunkline_grammar::{Grammar, GrammarError};

use crate::support::{compiler, model};

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

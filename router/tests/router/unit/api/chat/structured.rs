use serde_json::{Value, json};
use trunkline_api::chat::structured::StructuredFields;
use trunkline_generation::grammars::AskedGrammar;
use trunkline_grammar::{Grammar, JsonSchema};

fn format(value: Value) -> Result<Option<Grammar>, String> {
    let fields = StructuredFields { response_format: Some(value), ..StructuredFields::default() };
    asked(fields, "response_format")
}

/// Returns the grammar that the fields ask for, and asserts that `given` is the field that asks for it.
fn asked(fields: StructuredFields, given: &str) -> Result<Option<Grammar>, String> {
    match fields.grammar() {
        Ok(None) => Ok(None),
        Ok(Some(AskedGrammar { field, grammar })) => {
            assert_eq!(field, given);
            Ok(Some(grammar))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_dialects_schema_field_is_read() {
    let schema = json!({"type": "object"});
    let schema_of = |is_strict| Ok(Some(Grammar::JsonSchema(JsonSchema::new(schema.clone(), is_strict))));
    for value in [
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}),
        json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema}),
    ] {
        assert_eq!(format(value.clone()), schema_of(true), "{value}");
    }
    for value in [
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": false, "schema": schema}}),
        json!({"type": "json_schema", "name": "x", "strict": null, "schema": schema}),
        json!({"type": "json_schema", "value": schema}),
        json!({"type": "json_schema", "value": {"name": "x", "schema": schema}}),
        json!({"type": "json_object", "value": schema}),
        json!({"type": "json_object", "schema": schema}),
        json!({"type": "json", "value": schema}),
        json!({"type": "json", "value": schema.to_string()}),
    ] {
        assert_eq!(format(value.clone()), schema_of(false), "{value}");
    }
    let ebnf = StructuredFields {
        ebnf: Some("root ::= x".into()),
        grammar: Some(String::new()),
        ..Default::default()
    };
    assert_eq!(asked(ebnf, "ebnf"), Ok(Some(Grammar::Lark("root ::= x".into()))));
    let guided = StructuredFields { guided_json: Some(schema.clone()), ..StructuredFields::default() };
    assert_eq!(asked(guided, "guided_json"), schema_of(true));
    assert_eq!(format(json!({"type": "text"})), Ok(None));
    assert_eq!(format(json!({"type": "json_object"})), Ok(Some(Grammar::JsonObject)));
    assert_eq!(format(json!({"type": "regex", "value": "a+"})), Ok(Some(Grammar::Regex("a+".into()))));
}

#[test]
fn vllms_object_has_exactly_one_constraint() {
    let grammar = |value| {
        let fields = StructuredFields { structured_outputs: Some(value), ..StructuredFields::default() };
        asked(fields, "structured_outputs")
    };
    assert_eq!(grammar(json!({"json": null, "regex": "a"})), Ok(Some(Grammar::Regex("a".into()))));
    assert_eq!(grammar(json!({"choice": ["a"]})), Ok(Some(Grammar::Choices(vec!["a".into()]))));
    assert_eq!(grammar(json!({"json_object": true})), Ok(Some(Grammar::JsonObject)));
    assert_eq!(grammar(json!({})), Ok(None));
    let tag = json!({"format": {"type": "const_string", "value": "a"}});
    let parsed = grammar(json!({"structural_tag": tag.to_string()}));
    assert_eq!(parsed, grammar(json!({"structural_tag": tag})));
    assert!(matches!(parsed, Ok(Some(Grammar::StructuralTag(_)))));
}

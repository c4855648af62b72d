//! Numbers that a double cannot represent, and bounds beyond all doubles.

use serde_json::{Value, json};
use trunkline_grammar::{Grammar, GrammarCompiler, GrammarError};
use trunkline_text::ModelText;

use crate::support::{check_schema, compiler, model};

const NUM_OUTPUTS: u64 = 40;

fn refusal(compiler: &GrammarCompiler, schema: &Value) -> GrammarError {
    compiler
        .compile(&Grammar::JsonSchema(schema.clone().into()))
        .err()
        .unwrap_or_else(|| panic!("{schema} is accepted"))
}

/// Checks that all finished outputs are valid, and that most are finished.
fn check_obeyed(model: &ModelText, compiler: &GrammarCompiler, schema: &Value) {
    let check = check_schema(&schema.to_string(), schema, model, compiler, NUM_OUTPUTS);
    let check = check.unwrap_or_else(|error| panic!("{schema}: {error}"));
    assert_eq!(check.faults, [""; 0]);
    assert!(check.num_finished as u64 * 2 > NUM_OUTPUTS, "{schema}: {} finished", check.num_finished);
}

#[test]
fn inexact_numbers_are_refused_with_their_position() {
    let compiler = compiler(&model());
    for (schema, keyword, pointer) in [
        (json!({"const": 9_007_199_254_740_993_u64}), "const", "#"),
        (json!({"enum": [1, u64::MAX]}), "enum", "#"),
        (json!({"items": {"enum": [[{"a": 9_007_199_254_740_993_u64}]]}}), "enum", "#/items"),
        (
            json!({"properties": {"a": {"type": "integer", "minimum": u64::MAX - 1}}}),
            "minimum",
            "#/properties/a",
        ),
        (json!({"type": "integer", "const": 10_u64.pow(19)}), "const", "#"),
        (json!({"minimum": 9_007_199_254_740_993_u64, "maximum": 9_007_199_254_740_993_u64}), "maximum", "#"),
        (json!({"type": "number", "minimum": 1e20}), "minimum", "#"),
        (json!({"$ref": "#/elsewhere/a", "elsewhere": {"a": {"const": u64::MAX}}}), "const", "#/elsewhere/a"),
    ] {
        let error = refusal(&compiler, &schema);
        assert_eq!(error.code(), "unsupported_keyword", "{schema}: {error}");
        let begin = format!("keyword `{keyword}` at `{pointer}` is not supported ");
        assert!(error.to_string().starts_with(&begin), "{schema}: {error}");
    }
}

#[test]
fn numbers_near_the_limits_of_doubles_are_valid() {
    let (model, compiler) = (model(), compiler(&model()));
    let edge = 1_i64 << 53;
    for (lower, upper) in [
        (edge - 1, edge + 1),
        (edge, edge + 9),
        (edge + 1, edge + 3),
        (edge + 3, edge * 64),
        (-edge - 9, 1 - edge),
        (i64::MAX - 5000, i64::MAX),
        (i64::MIN, i64::MIN + 5000),
        (i64::MIN, i64::MAX),
        (0, i64::MAX),
        (999_999_999_999_999_999, 1_000_000_000_000_000_001),
    ] {
        for kind in ["integer", "number"] {
            check_obeyed(&model, &compiler, &json!({"type": kind, "minimum": lower, "maximum": upper}));
        }
        check_obeyed(
            &model,
            &compiler,
            &json!({"type": "integer", "exclusiveMinimum": lower, "exclusiveMaximum": upper}),
        );
    }
    for schema in [
        json!({"enum": [edge, edge + 2, -edge - 2, 1_i64 << 62, 1e17, 0.1, 1e-7]}),
        json!({"const": {"a": [edge + 4]}}),
    ] {
        check_obeyed(&model, &compiler, &schema);
    }
}

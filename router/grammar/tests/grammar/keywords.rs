//! Outputs obey every supported keyword.

use serde_json::{Value, json};
use trunkline_grammar::{FORMATS, Grammar, IGNORED_KEYWORDS, KEYWORDS};

use crate::support::{check_outputs, check_schema, compiler, model};

const NUM_OUTPUTS: u64 = 40;

/// Schemas that are obeyed, a line each. The first ones are for a keyword each: many outputs would be invalid if it
/// were ignored. Others have keywords that are expressed through others, are as clients' libraries write them, or have
/// numbers that a double cannot represent. `same` is an equivalent that the validator takes.
const OBEYED: &str = include_str!("../schemas/obeyed.jsonl");

#[test]
fn outputs_obey_their_schemas() {
    let (model, compiler) = (model(), compiler(&model()));
    let mut keywords = Vec::new();
    for line in OBEYED.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        keywords.extend(row["keyword"].as_str().map(str::to_owned));
        let constraint = compiler.compile(&Grammar::JsonSchema(row["schema"].clone().into()));
        let constraint = constraint.unwrap_or_else(|error| panic!("{line}: {error}"));
        let schema = row.get("same").unwrap_or(&row["schema"]);
        let check = check_outputs(line, schema, &model, &constraint, NUM_OUTPUTS);
        assert_eq!(check.faults, [""; 0]);
        let num_finished = check.num_finished;
        assert!(num_finished as u64 * 2 > NUM_OUTPUTS, "{line}: {num_finished} of {NUM_OUTPUTS} finished");
    }
    assert_eq!(keywords, KEYWORDS);
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

//! Realistic schemas are refused by name, or every finished output validates.
//!
//! `tests/schemas/own.jsonl` holds schemas of this project in the style of real APIs.
//! `integration-tests/test_structured.py` sends them to a server. A larger sample by other authors has no licence that
//! permits including it in this tree, so `TRUNKLINE_SCHEMAS` names its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::draw;
use crate::support::{Check, check_schema, compiler, model};

const OWN: &str = include_str!("../schemas/own.jsonl");
/// Begins the names of the schemas that are refused.
const REFUSED: &str = "refused: ";
/// Least share of the sample's schemas that must be accepted.
const MIN_ACCEPTED_PERCENT: usize = 75;

/// Parses lines of the form `{"name", "schema"}`.
fn entries(lines: &str) -> Vec<(String, Value)> {
    let entry = |line: &str| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        (entry["name"].as_str().unwrap().to_owned(), entry["schema"].take())
    };
    lines.lines().map(entry).collect()
}

#[test]
fn own_schemas_are_refused_by_name_or_obeyed() {
    let (model, entries) = (model(), entries(OWN));
    let compiler = compiler(&model);
    assert!(entries.len() >= 20);
    let num_outputs = if draw::is_test_all() { 40 } else { 8 };
    let mut refused = Vec::new();
    for (name, schema) in &entries {
        match check_schema(name, schema, &model, &compiler, num_outputs) {
            Ok(Check { num_finished, faults }) => {
                assert_eq!(faults, [""; 0]);
                assert!(
                    num_finished as u64 * 2 > num_outputs,
                    "{name}: {num_finished} outputs were finished"
                );
                assert!(!name.starts_with(REFUSED), "{name}: is accepted");
            }
            Err(error) => {
                assert!(name.starts_with(REFUSED), "{name}: {error}");
                refused.push(error.to_string());
            }
        }
    }
    for (error, words) in
        refused.iter().zip(["`uniqueItems` at `#`", "`if` at `#`", "`#/properties/password`"])
    {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(refused.len(), 3);
}

/// Reads the larger sample, which may be compressed.
fn sample() -> String {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/schemas/sample.jsonl.gz");
    let path = std::env::var_os("TRUNKLINE_SCHEMAS").map_or_else(beside, PathBuf::from);
    let hint = "hint: name a file of schemas in TRUNKLINE_SCHEMAS";
    assert!(path.exists(), "{} does not exist; {hint}", path.display());
    if path.extension().is_none_or(|extension| extension != "gz") {
        return std::fs::read_to_string(path).unwrap();
    }
    let output = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip runs");
    assert!(output.status.success(), "{} cannot be read; {hint}", path.display());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "make test-all: the sample is not part of this tree"]
fn sample_schemas_are_refused_by_name_or_obeyed() {
    let (model, entries) = (model(), entries(&sample()));
    let compiler = compiler(&model);
    let (mut num_accepted, mut num_finished) = (0, 0);
    let mut faults = Vec::new();
    let mut refusals: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, schema) in &entries {
        match check_schema(name, schema, &model, &compiler, 6) {
            Ok(check) => {
                num_accepted += 1;
                num_finished += check.num_finished;
                faults.extend(check.faults);
            }
            Err(error) => {
                assert_ne!(error.code(), "grammar_failed", "{name}: {error}");
                *refusals.entry(error.code()).or_default() += 1;
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let num_schemas = entries.len();
    assert!(
        num_accepted * 100 >= num_schemas * MIN_ACCEPTED_PERCENT,
        "{num_accepted} of {num_schemas} are accepted: {refusals:?}"
    );
    assert!(
        num_finished > num_accepted * 3,
        "{num_finished} outputs of {num_accepted} schemas were finished"
    );
}

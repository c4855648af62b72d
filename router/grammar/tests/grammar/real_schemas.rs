//! Schemas as people write them: refused by name, or every finished output validates.
//!
//! `tests/schemas/own.jsonl` has schemas of this project, in the forms that real APIs use, which
//! `integration-tests/test_structured.py` asks a server for too. A larger sample of schemas that others wrote has no
//! licence that lets it be part of this tree. `TRUNKLINE_SCHEMAS` names its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::draw;
use crate::support::{Check, check_schema, compiler, model};

const OWN: &str = include_str!("../schemas/own.jsonl");
/// The names of own schemas that are refused begin with it.
const REFUSED: &str = "refused: ";
/// So many schemas of the sample have to be taken, at least.
const MIN_TAKEN_PERCENT: usize = 75;

/// One `{"name", "schema"}` a line.
fn entries(lines: &str) -> Vec<(String, Value)> {
    let entry = |line: &str| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        (entry["name"].as_str().unwrap().to_owned(), entry["schema"].take())
    };
    lines.lines().map(entry).collect()
}

#[test]
fn own_schemas_are_refused_by_name_or_hold() {
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
                assert!(!name.starts_with(REFUSED), "{name}: is taken");
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

/// The larger sample, compressed or not.
fn sample() -> String {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/schemas/sample.jsonl.gz");
    let path = std::env::var_os("TRUNKLINE_SCHEMAS").map_or_else(beside, PathBuf::from);
    let hint = "hint: name a file of schemas in TRUNKLINE_SCHEMAS";
    assert!(path.exists(), "{} is not there; {hint}", path.display());
    if path.extension().is_none_or(|extension| extension != "gz") {
        return std::fs::read_to_string(path).unwrap();
    }
    let output = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip runs");
    assert!(output.status.success(), "{} cannot be read; {hint}", path.display());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "make test-all: the sample is no part of this tree"]
fn schemas_that_others_wrote_are_refused_by_name_or_hold() {
    let (model, entries) = (model(), entries(&sample()));
    let compiler = compiler(&model);
    let (mut num_taken, mut num_finished) = (0, 0);
    let mut faults = Vec::new();
    let mut refusals: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, schema) in &entries {
        match check_schema(name, schema, &model, &compiler, 6) {
            Ok(check) => {
                num_taken += 1;
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
        num_taken * 100 >= num_schemas * MIN_TAKEN_PERCENT,
        "{num_taken} of {num_schemas} are taken: {refusals:?}"
    );
    assert!(num_finished > num_taken * 3, "{num_finished} outputs of {num_taken} schemas were finished");
}

//! Realistic schemas are refused by name, or every finished output validates.
//!
//! `tests/schemas/own.jsonl` holds schemas of this project in the style of real APIs.
//! `integration-tests/test_structured.py` sends them to a server. A larger sample by other authors has no licence that
//! permits including it in this tree, so `TRUNKLINE_SCHEMAS` names its file.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trunkline_grammar::GrammarError;

use crate::draw;
use crate::support::{Check, check_relaxed, check_schema, compiler, model};

const OWN: &str = include_str!("../schemas/own.jsonl");
/// Begins the names of the schemas that are refused.
const REFUSED: &str = "refused: ";
/// Least shares of the sample's schemas that must be accepted with `strict` and without.
const MIN_STRICT_PERCENT: usize = 93;
const MIN_RELAXED_PERCENT: usize = 97;
/// Outputs written under each schema of the sample.
const NUM_SAMPLE_OUTPUTS: u64 = 6;

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
    for (error, words) in refused.iter().zip(["`uniqueItems` at `#`", "`#/properties/password`"]) {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(refused.len(), 2);
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

/// The outcome of a sample of schemas.
#[derive(Default)]
struct Sample {
    num_schemas: usize,
    num_accepted: usize,
    num_finished: usize,
    faults: Vec<String>,
    /// Names of refused schemas with the error, or of accepted ones with the keywords that were left out.
    notes: Vec<String>,
}

impl Sample {
    fn add(&mut self, name: &str, outcome: Result<(Check, Vec<String>), GrammarError>) {
        self.num_schemas += 1;
        match outcome {
            Ok((check, relaxed)) => {
                self.num_accepted += 1;
                self.num_finished += check.num_finished;
                self.faults.extend(check.faults);
                if !relaxed.is_empty() {
                    self.notes.push(format!("{name}: without {}", relaxed.join(", ")));
                }
            }
            Err(error) => {
                assert_ne!(error.code(), "grammar_failed", "{name}: {error}");
                self.notes.push(format!("{name}: {error}"));
            }
        }
    }

    // The figures are for docs/api/structured-output.md.
    #[allow(clippy::print_stdout)]
    fn check(&self, title: &str, min_accepted_percent: usize) {
        let Self { num_schemas, num_accepted, num_finished, faults, notes } = self;
        println!("{title}: {num_accepted} of {num_schemas} accepted, {num_finished} outputs finished");
        notes.iter().for_each(|note| println!("  {note}"));
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
        assert!(num_accepted * 100 >= num_schemas * min_accepted_percent, "{title}: {num_accepted} accepted");
        assert!(num_finished > &(num_accepted * 3), "{title}: {num_finished} outputs finished");
    }
}

#[test]
#[ignore = "make test-all: the sample is not part of this tree"]
fn sample_schemas_are_refused_by_name_or_obeyed() {
    let (model, entries) = (model(), entries(&sample()));
    let compiler = compiler(&model);
    let (mut strict, mut relaxed) = (Sample::default(), Sample::default());
    for (name, schema) in &entries {
        let outcome = check_schema(name, schema, &model, &compiler, NUM_SAMPLE_OUTPUTS);
        strict.add(name, outcome.map(|check| (check, Vec::new())));
        relaxed.add(name, check_relaxed(name, schema, &model, &compiler, NUM_SAMPLE_OUTPUTS));
    }
    strict.check("strict", MIN_STRICT_PERCENT);
    relaxed.check("relaxed", MIN_RELAXED_PERCENT);
}

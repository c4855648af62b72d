//! Schemas that people really wrote: refused by name, or every finished output validates.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{check_schema, compiler, model};

/// Outputs for each schema.
const NUM_OUTPUTS: u64 = 6;
/// So many of them have to be taken, and finish at least once.
const MIN_TAKEN_PERCENT: usize = 75;

fn path() -> PathBuf {
    std::env::var_os("TRUNKLINE_SCHEMAS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/schemas/sample.jsonl.gz"),
        PathBuf::from,
    )
}

#[test]
fn real_schemas_are_refused_by_name_or_hold() {
    let path = path();
    let Ok(file) = std::fs::File::open(&path) else {
        println!("skipped: {} is not there; hint: name it in TRUNKLINE_SCHEMAS", path.display());
        return;
    };
    let model = model();
    let compiler = compiler(&model);
    let (mut num_schemas, mut num_taken, mut num_finished) = (0, 0, 0);
    let mut faults = Vec::new();
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    for line in BufReader::new(flate2::read::GzDecoder::new(file)).lines() {
        let entry: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let name = entry["name"].as_str().unwrap();
        num_schemas += 1;
        match check_schema(name, &entry["schema"], &model, &compiler, NUM_OUTPUTS) {
            Ok(check) => {
                num_taken += 1;
                num_finished += check.num_finished;
                faults.extend(check.faults);
                if check.num_finished == 0 {
                    println!("{name}: no output was finished");
                }
            }
            Err(error) => {
                assert_ne!(error.code(), "grammar_failed", "{name}: {error}");
                println!("{name}: {}: {error}", error.code());
                *refusals.entry(error.code().to_owned()).or_default() += 1;
            }
        }
    }
    println!("{num_taken} of {num_schemas} taken, {num_finished} outputs; refused: {refusals:?}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(num_taken * 100 >= num_schemas * MIN_TAKEN_PERCENT, "too many schemas are refused");
}

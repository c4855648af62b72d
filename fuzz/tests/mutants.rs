//! Every target over mutants of its seeds. `TRUNKLINE_FUZZ_CASES` says how many, `TRUNKLINE_SEED` from which on.

use std::panic::catch_unwind;

use trunkline_fuzz::TARGETS;
use trunkline_fuzz::mutant::mutant;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

fn check(name: &str, num_cases: u64) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let (seeds, words) = ((target.seeds)(), (target.words)());
    for seed in &seeds {
        (target.run)(seed);
    }
    let first = number("TRUNKLINE_SEED", 0);
    for case in first..first + number("TRUNKLINE_FUZZ_CASES", num_cases) {
        let input = mutant(case, &seeds, &words);
        if catch_unwind(|| (target.run)(&input)).is_err() {
            panic!("case {case} of `{name}` (TRUNKLINE_SEED={case}): {:?}", String::from_utf8_lossy(&input));
        }
    }
}

#[test]
fn body() {
    check("body", 10_000);
}

#[test]
fn template() {
    check("template", 20_000);
}

#[test]
fn event() {
    check("event", 50_000);
}

#[test]
fn reply() {
    check("reply", 200_000);
}

#[test]
fn gguf() {
    check("gguf", 200_000);
}

#[test]
fn keys() {
    check("keys", 50_000);
}

//! The pure crates do not reach for clocks, files, threads, locks, the environment or random order.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs;
use std::path::Path;

/// Not in `src`, and why.
const FORBIDDEN: [(&str, &str); 12] = [
    ("std::time", "time is passed in"),
    ("Instant", "time is passed in"),
    ("SystemTime", "time is passed in"),
    ("std::fs", "no I/O"),
    ("std::io", "no I/O"),
    ("std::net", "no I/O"),
    ("std::env", "no environment"),
    ("tokio", "never waits"),
    ("Mutex", "one task owns it"),
    ("RwLock", "one task owns it"),
    ("HashMap", "random order"),
    ("HashSet", "random order"),
];

#[test]
fn sources_are_pure() {
    let mut num_files = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let path = entry.unwrap().path();
        num_files += 1;
        // Unit tests, which stand last in a file, may use threads to test handles.
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (word, why) in FORBIDDEN {
                assert!(!line.contains(word), "{}:{}: `{word}`: {why}", path.display(), number + 1);
            }
            assert!(!line.contains("std::thread"), "{}:{}: one task owns it", path.display(), number + 1);
        }
    }
    assert!(num_files > 5, "the sources were found");
}

#[test]
fn dependencies_are_pure() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let after = manifest.split("[dependencies]").nth(1).unwrap();
    let dependencies = after.split("\n[").next().unwrap();
    for line in dependencies.lines().filter(|line| !line.trim().is_empty()) {
        assert!(line.starts_with("trunkline-kv"), "a pure crate depends on pure crates only: {line}");
    }
}

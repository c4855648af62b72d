//! The number of cases of random tests, and their seed.
//!
//! `make test` draws the same few cases in each run, so that a failure comes from the change under test.
//! `TRUNKLINE_TEST_ALL=1` (`make test-all`) draws many cases, and new ones in each run. Tests of other crates include
//! this file.
#![allow(dead_code, reason = "each crate uses some of it")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may read the environment")]

use std::hash::{BuildHasher, RandomState};

/// Returns true under `make test-all`.
pub fn is_test_all() -> bool {
    number("TRUNKLINE_TEST_ALL") == Some(1)
}

/// Returns the number in an environment variable, if it is set.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a whole number")))
}

/// Returns the number of cases: that in `variable` if it is set, or else `few`, or `many` under `make test-all`.
pub fn count(variable: &str, few: u64, many: u64) -> u64 {
    number(variable).unwrap_or(if is_test_all() { many } else { few })
}

/// Returns the first seed: that in `TRUNKLINE_SEED` if it is set, or else 0, or a random one under `make test-all`.
///
/// The output of a failed test shows a random seed.
#[allow(clippy::print_stderr, reason = "the harness shows it if the test fails")]
pub fn first_seed() -> u64 {
    number("TRUNKLINE_SEED").unwrap_or_else(|| {
        if !is_test_all() {
            return 0;
        }
        // A short number is easier to type.
        let seed = u64::from(RandomState::new().hash_one(0) as u32);
        eprintln!("drawn from TRUNKLINE_SEED={seed}");
        seed
    })
}

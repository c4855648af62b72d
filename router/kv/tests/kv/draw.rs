//! How many cases a random test draws, and from which seed. `make test` draws the same few in each run, so that a
//! change is judged by what it changes. `TRUNKLINE_TEST_ALL=1` (`make test-all`) draws many, and new ones in each run.
//! Tests of other crates include this file.
#![allow(dead_code, reason = "each crate uses some of it")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may read the environment")]

use std::hash::{BuildHasher, RandomState};

/// True in the second tier.
pub fn is_test_all() -> bool {
    number("TRUNKLINE_TEST_ALL") == Some(1)
}

/// The number in an environment variable, if it is set.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a whole number")))
}

/// The number of cases: what `variable` says if it is set, else `few` in the first tier and `many` in the second.
pub fn count(variable: &str, few: u64, many: u64) -> u64 {
    number(variable).unwrap_or(if is_test_all() { many } else { few })
}

/// The first seed: what `TRUNKLINE_SEED` says if it is set, else 0 in the first tier and a random one in the second,
/// which the output of a failed test shows.
#[allow(clippy::print_stderr, reason = "the harness shows it if the test fails")]
pub fn first_seed() -> u64 {
    number("TRUNKLINE_SEED").unwrap_or_else(|| {
        if !is_test_all() {
            return 0;
        }
        // Differs from run to run, and is short enough to be typed.
        let seed = u64::from(RandomState::new().hash_one(0) as u32);
        eprintln!("drawn from TRUNKLINE_SEED={seed}");
        seed
    })
}

//! The number of cases of random tests, their seed, and a generator of random numbers.
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

/// The generator SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, end: N) -> N {
        let end: u64 = end.try_into().ok().expect("a bound is not negative");
        N::try_from(self.next() % end).ok().expect("it is below the bound")
    }
}

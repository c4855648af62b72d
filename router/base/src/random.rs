//! Random numbers from the operating system, for seeds and ids. Sampling with a given seed does not depend on them.

/// Returns 64 random bits. Panics if the operating system provides none, because ids would no longer be unique.
#[allow(clippy::expect_used)]
pub fn u64() -> u64 {
    getrandom::u64().expect("the operating system provides random numbers")
}

/// Returns a new id of 24 hexadecimal digits.
pub fn id() -> String {
    format!("{:016x}{:08x}", u64(), u64() as u32)
}

//! Random numbers from the operating system: seeds and ids. Nothing that a seed decides uses them.

/// 64 random bits. Panics if the operating system has none to give, after which nothing should be trusted.
#[allow(clippy::expect_used)]
pub fn u64() -> u64 {
    getrandom::u64().expect("the operating system gives no random numbers")
}

/// A new id, 24 hex digits.
pub fn id() -> String {
    format!("{:016x}{:08x}", u64(), u64() as u32)
}

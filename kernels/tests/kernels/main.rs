//! Tests of the kernels and the step executor, in one program: the folders and files are those of `src`.
//!
//! They are apart from `src` so that the library is compiled once. Kernels are called through entries that are no
//! generic functions, so that none is compiled here again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aligned;
#[cfg(target_arch = "x86_64")]
mod cpus;
mod digest;
mod executor;
mod isa;
mod kv_pool;
mod linear;
mod ops;
mod pack;
mod page_sums;
mod program;
mod quantize;
mod random;
mod sampling;
mod shared_mut;
mod threads;
mod weight_cache;

/// Whether `make test-all` runs, with cases that rarely fail and take long.
fn runs_all() -> bool {
    std::env::var_os("TRUNKLINE_TEST_ALL").is_some_and(|value| value == "1")
}

/// Number of cases: the first in each run, the second in `make test-all`.
fn num_cases<N>(first_tier: N, all: N) -> N {
    if runs_all() { all } else { first_tier }
}

//! Tests of the kernels and the step executor in one program. The folders and files mirror those of `src`.
//!
//! The tests are separate from `src` so that the library is compiled once. They call kernels through entry points that
//! are not generic, so that no kernel is compiled again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aligned;
mod attention;
#[cfg(target_arch = "x86_64")]
mod cpus;
mod digest;
mod executor;
mod isa;
mod kv_pool;
mod kv_spill;
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
mod weight_stream;

use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};

use random::bits;

/// The smallest geometry, of which tests change what matters to them.
const GEOMETRY: KvGeometry = KvGeometry {
    num_layers: 1,
    num_kv_heads: 1,
    head_size: 32,
    block_size: 16,
    dtype: KvDtype::F16,
    latent_size: None,
};

/// Runs `operation` on every instruction set, checks that all give the same bits, and returns the result.
fn on_all(what: &str, operation: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let expected = operation(Isa::SCALAR);
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR) {
        assert!(bits(&operation(isa)) == bits(&expected), "{what}: {isa}");
    }
    expected
}

fn best() -> Isa {
    *Isa::available().last().unwrap()
}

/// Returns true in `make test-all`, which also runs slow cases.
fn runs_all() -> bool {
    std::env::var_os("TRUNKLINE_TEST_ALL").is_some_and(|value| value == "1")
}

/// Returns the number of cases: `first_tier` normally, and `all` in `make test-all`.
fn num_cases<N>(first_tier: N, all: N) -> N {
    if runs_all() { all } else { first_tier }
}

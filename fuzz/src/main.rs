//! Runs the target named by `TRUNKLINE_FUZZ_TARGET` under libFuzzer.

#![no_main]
#![allow(clippy::panic)]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use trunkline_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    let name = std::env::var("TRUNKLINE_FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        panic!("TRUNKLINE_FUZZ_TARGET is {name:?}, must be one of {names:?}")
    })
}

fuzz_target!(|data: &[u8]| (TARGET.get_or_init(target).run)(data));

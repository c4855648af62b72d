//! Chooses the instruction sets whose kernels a crate contains: one `--cfg isa="NAME"` for each. All crates of the
//! kernels have this build script.
//!
//! With the feature `every-isa`, or when compiling for another machine, these are all sets of the target. Otherwise it
//! is the fastest set of this machine, which takes a third of the time to compile.

use std::env;

const X86_64: &[&str] = &["scalar", "avx2", "avx_vnni", "avx512"];
const AARCH64: &[&str] = &["scalar", "neon", "neon_i8mm"];
const OTHERS: &[&str] = &["scalar"];

fn main() {
    // Cargo notices a change of this file by itself. Without a line like this one, it would run for any changed file.
    println!("cargo::rerun-if-changed=Cargo.toml");
    for set in [X86_64, AARCH64].concat() {
        println!("cargo::rustc-check-cfg=cfg(isa, values(\"{set}\"))");
    }
    let is_native =
        env::var("HOST") == env::var("TARGET") && env::var_os("CARGO_FEATURE_EVERY_ISA").is_none();
    let sets = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => X86_64,
        Ok("aarch64") => AARCH64,
        _ => OTHERS,
    };
    let native = fastest();
    for set in sets.iter().filter(|set| !is_native || native == **set) {
        println!("cargo::rustc-cfg=isa=\"{set}\"");
    }
}

/// The set that `Isa::detect` would choose on this machine.
#[cfg(target_arch = "x86_64")]
fn fastest() -> &'static str {
    let has_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let has_avx512_vnni = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni");
    let has_avx512 = has_avx512_vnni
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq");
    match () {
        () if !has_avx2 => "scalar",
        () if has_avx512 => "avx512",
        () if has_avx512_vnni || is_x86_feature_detected!("avxvnni") => "avx_vnni",
        () => "avx2",
    }
}

#[cfg(target_arch = "aarch64")]
fn fastest() -> &'static str {
    use std::arch::is_aarch64_feature_detected;
    match (is_aarch64_feature_detected!("dotprod"), is_aarch64_feature_detected!("i8mm")) {
        (true, true) => "neon_i8mm",
        (true, false) => "neon",
        (false, _) => "scalar",
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fastest() -> &'static str {
    "scalar"
}

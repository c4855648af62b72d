#!/bin/sh
# check-aarch64.sh [cargo test arguments]: builds the kernels for AArch64 and runs their tests in an emulator.
#
# Needs Debian testing or sid, because older releases have an older Rust, or a container of it, with:
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install cargo libstd-rust-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
# With rustup, `rustup target add aarch64-unknown-linux-gnu` replaces the first two packages.
set -eu
for tool in cargo aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "error: \`$tool\` is missing; hint: install the packages listed in scripts/check-aarch64.sh" >&2
        exit 1
    }
done
cd "$(dirname "$0")/.."
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
exec cargo test --release --target aarch64-unknown-linux-gnu -p trunkline-kernels "$@"

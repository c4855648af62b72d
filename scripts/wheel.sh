#!/bin/sh
# Builds dist/trunkline-*.whl (launcher and router binaries) and dist/trunkline_server-*.whl (server and kernels).
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
mkdir -p dist
rm -f dist/*.whl
maturin="$root/.tools/bin/maturin"
target=${CARGO_TARGET_DIR:-$root/target}
# maturin installs files from the data folder's scripts/ next to the launcher.
data="$root/launcher/trunkline.data"
trap 'rm -rf "$data"' EXIT
cargo build --release --locked --quiet -p trunkline-router-full --config .cargo/ship.toml
mkdir -p "$data/scripts"
# maturin strips only what it compiles itself.
strip -o "$data/scripts/trunkline-router" "$target/release/trunkline-router-full"
"$maturin" build --release --locked --quiet --strip --out dist --manifest-path launcher/Cargo.toml
"$maturin" build --release --locked --quiet --strip --out dist
ls -l dist

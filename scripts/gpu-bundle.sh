#!/usr/bin/env bash
# Creates .gpu/ for `make gpu-check` on another machine with x86-64 Linux and Python 3.12. It has the built launcher,
# router and kernels, and the Python packages that an environment with torch may lack.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${1:?the folder of the release binaries}
mkdir -p .gpu/bin .gpu/site
install -s -m 755 "$BIN/trunkline" "$BIN/trunkline-router" .gpu/bin
install -s "$BIN/libtrunkline_kernels_python.so" .gpu/_kernels.abi3.so
.tools/bin/uv pip install --quiet --target .gpu/site --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
    --only-binary :all: "protobuf>=7.35.1" pytest
.tools/bin/uv pip install --quiet --target .gpu/site --no-deps gguf
du -sh .gpu

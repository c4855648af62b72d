#!/usr/bin/env bash
# Creates .gpu/ for `make gpu-check` on another machine with x86-64 Linux and Python 3.12. It has the built launcher,
# router and kernels, and the Python packages that an environment with torch may lack. With the path of a Python 3.12 that
# has the GPU machine's versions of torch and Triton, also kernels compiled for compute capability 9.0.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${1:?the folder of the release binaries}
PYTHON=${2:-}
mkdir -p .gpu/bin .gpu/site
install -s -m 755 "$BIN/trunkline" "$BIN/trunkline-router" .gpu/bin
install -s "$BIN/libtrunkline_kernels_python.so" .gpu/_kernels.abi3.so
.tools/bin/uv pip install --quiet --target .gpu/site --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
    --only-binary :all: "protobuf>=7.35.1" pytest
.tools/bin/uv pip install --quiet --target .gpu/site --no-deps gguf
if [ -n "$PYTHON" ]; then
    export PYTHONPATH=$PWD/benchmark:$PWD/server:$PWD/.gpu/site TRITON_CACHE_DIR=${CARGO_TARGET_DIR:-$PWD/target}/gpu-cache
    export TRITON_STORE_BINARY_ONLY=1 GPU_CHECK_RESULTS=/dev/null
    for what in "check products" "check attention" "model llama-8b" "model llama-8b-fp8" "model llama-1b" "model small" \
        "model small --kv-cache-dtype int8" "model small --kv-cache-dtype fp8" "model small --kv-cache-dtype int4"; do
        # shellcheck disable=SC2086  several words
        "$PYTHON" -m gpu.dry --$what
    done
    "$PYTHON" -m gpu.compiled_cache "$TRITON_CACHE_DIR" .gpu/triton-cache.tar.gz
fi
SIZE_MIB=$(du -sm .gpu | cut -f1)
echo "$SIZE_MIB MiB in .gpu"
# A machine may take 64 MiB, with the rest of the checkout.
if [ "$SIZE_MIB" -gt 50 ]; then
    echo "error: .gpu has $SIZE_MIB MiB, at most 50 can be carried; hint: leave out GPU_PYTHON, or compile fewer models" >&2
    exit 1
fi

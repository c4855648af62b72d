#!/usr/bin/env bash
# Checks the cuda backend, then measures it; see benchmark/gpu. Needs Python 3.12 with torch, triton, transformers, grpcio,
# numpy, safetensors and tokenizers. The rest comes from .gpu/, which `make gpu-bundle` creates on any x86-64 machine.
# Without a GPU, the kernels run in Triton's interpreter. Takes the arguments of `python -m gpu`.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
BUNDLE=${TRUNKLINE_GPU_BUNDLE:-.gpu}
[[ $BUNDLE = /* ]] || BUNDLE=$PWD/$BUNDLE
ARGUMENTS=()
if [ -d "$BUNDLE/site" ]; then
    ARGUMENTS+=(--bundle "$BUNDLE")
    export PYTHONPATH="$BUNDLE/site${PYTHONPATH:+:$PYTHONPATH}"
fi
if [ -x "$BUNDLE/bin/trunkline" ]; then
    ARGUMENTS+=(--launcher "$BUNDLE/bin/trunkline")
elif [[ " $* " != *" --launcher"* ]]; then
    echo "warning: $BUNDLE/bin/trunkline is missing, so nothing is checked through HTTP; hint: run \`make gpu-bundle\`" >&2
fi
export PYTHONPATH="$PWD/benchmark:$PWD/server${PYTHONPATH:+:$PYTHONPATH}"
if [ -e "$BUNDLE/_kernels.abi3.so" ] && ! cmp -s "$BUNDLE/_kernels.abi3.so" server/trunkline_server/_kernels.abi3.so; then
    cp --remove-destination "$BUNDLE/_kernels.abi3.so" server/trunkline_server/
fi
"$PYTHON" -c "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))" \
    torch triton numpy safetensors || {
    echo "error: $PYTHON lacks torch, triton, numpy or safetensors; hint: set PYTHON to a Python 3.12 that has them" >&2
    exit 1
}
exec "$PYTHON" -m gpu "${ARGUMENTS[@]}" "$@"

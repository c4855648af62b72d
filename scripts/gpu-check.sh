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
for module in torch triton numpy safetensors transformers grpc google.protobuf pytest; do
    "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" 2>/dev/null ||
        echo "warning: $PYTHON has no $module, so phases that need it fail; hint: set PYTHON, or run \`make gpu-bundle\` on a machine with network" >&2
done
"$PYTHON" -c "import torch, triton" || {
    echo "error: $PYTHON lacks torch or triton; hint: set PYTHON to a Python 3.12 that has them" >&2
    exit 1
}
exec "$PYTHON" -m gpu "${ARGUMENTS[@]}" "$@"

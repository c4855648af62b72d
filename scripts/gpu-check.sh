#!/usr/bin/env bash
# Checks the cuda backend, then measures it; see benchmark/gpu. Needs Python 3.12 with torch, triton, transformers, grpcio,
# numpy, safetensors and tokenizers; the rest comes from `make gpu-bundle` (.gpu/), made on any x86-64 machine and brought
# along. Without a GPU the kernels run in Triton's interpreter. Arguments are those of `python -m gpu`.
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
    echo "warning: there is no $BUNDLE/bin/trunkline: nothing is asked through HTTP; hint: \`make gpu-bundle\`" >&2
fi
export PYTHONPATH="$PWD/benchmark:$PWD/server${PYTHONPATH:+:$PYTHONPATH}"
for module in torch triton numpy safetensors transformers grpc google.protobuf pytest; do
    "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" 2>/dev/null ||
        echo "warning: $PYTHON has no $module: what needs it fails; hint: PYTHON=path, or \`make gpu-bundle\` where the network is" >&2
done
"$PYTHON" -c "import torch, triton" || {
    echo "error: $PYTHON has no torch or no triton; hint: PYTHON=path of a Python 3.12 that has them" >&2
    exit 1
}
exec "$PYTHON" -m gpu "${ARGUMENTS[@]}" "$@"

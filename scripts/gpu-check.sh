#!/usr/bin/env bash
# Checks the cuda backend, then measures it. Needs Python 3.12 with torch, triton, transformers, grpcio, numpy,
# safetensors and tokenizers; the rest comes from `make gpu-bundle` (.gpu/), made on any x86-64 machine and brought along.
# Without a GPU the kernels run in Triton's interpreter and nothing is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
BUNDLE=${TRUNKLINE_GPU_BUNDLE:-.gpu}
export PYTHONPATH="$PWD/benchmark:$PWD/server:$PWD/$BUNDLE/site${PYTHONPATH:+:$PYTHONPATH}"
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/trunkline-triton}
LAUNCHER=()
if [ -x "$BUNDLE/bin/trunkline" ]; then
    LAUNCHER=(--launcher "$PWD/$BUNDLE/bin/trunkline")
    export TRUNKLINE_PYTHON=${TRUNKLINE_PYTHON:-$(command -v "$PYTHON")}
fi
for module in torch triton numpy safetensors transformers pytest; do
    "$PYTHON" -c "import $module" 2>/dev/null || {
        echo "error: $PYTHON has no $module; hint: PYTHON=path of a Python 3.12 that has it, or make gpu-bundle" >&2
        exit 1
    }
done

if "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "== correctness on $("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name())')"
else
    echo "== no NVIDIA GPU here: kernels run in Triton's interpreter, speed is not measured"
fi
"$PYTHON" -m pytest -W ignore::DeprecationWarning server/tests/cuda "$@"
if "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "== speed"
    "$PYTHON" -m gpu --minutes "${MINUTES:-7}" "${LAUNCHER[@]}"
fi

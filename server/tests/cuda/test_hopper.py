"""Every product and row kernel compiles for Hopper, which the interpreter, taking more, cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trunkline_server

MAX_SHARED_BYTES = 227 * 1024
MAX_SCALAR_BYTES = 128
HERE = Path(__file__).parent


def has_compiler() -> bool:
    try:
        import triton.backends.nvidia as nvidia
    except ImportError:
        return False
    return all((Path(nvidia.__file__).parent / "bin" / name).exists() for name in ("ptxas", "cuobjdump"))


def kernels_of(script: str, cache: Path) -> list[dict[str, Any]]:
    """What a script says of the kernels that it compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(trunkline_server.__path__[0]).parent)}
    run = subprocess.run([sys.executable, HERE / script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.skipif(not has_compiler(), reason="this Triton brings no compiler for NVIDIA's devices")
def test_the_sampler_compiles_for_hopper(tmp_path: Path) -> None:
    kernels = kernels_of("hopper_sampling.py", tmp_path)
    assert len(kernels) == 10
    for kernel in kernels:
        # The kernel with all filters keeps some of its scalars in memory.
        assert kernel["spilled_bytes"] <= MAX_SCALAR_BYTES, kernel
        assert kernel["shared_bytes"] <= MAX_SHARED_BYTES, kernel


@pytest.mark.skipif(not has_compiler(), reason="this Triton brings no compiler for NVIDIA's devices")
def test_kernels_compile_for_hopper_and_use_its_matrix_units(tmp_path: Path) -> None:
    kernels = kernels_of("hopper.py", tmp_path)
    assert len(kernels) == 20
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["shared_bytes"] <= MAX_SHARED_BYTES, kernel
        if kernel["kernel"] in ("_parallel_kernel", "_persistent_kernel", "_grouped_kernel"):
            # One kind of instruction on every path: bits would differ between two.
            assert kernel["instructions"], kernel
            assert all(name.startswith("wgmma.mma_async.sync.aligned.m64") for name in kernel["instructions"]), kernel
        assert kernel["tensor_copies"] == kernel["case"].endswith("tma"), kernel

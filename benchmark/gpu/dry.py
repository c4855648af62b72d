"""Every launch of a model's steps, compiled for Hopper without one: what is launched does nothing.

PYTHONPATH=benchmark:server python -m gpu.dry [--model llama-8b] [--kv-cache-dtype auto]

The kernels get the arguments that they would get on a GPU, so what Triton's compiler refuses, or what takes more shared
memory than a multiprocessor has, shows here. Takes two layers of the model and a minute or two for each.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from trunkline_server.backends.cuda import build as assembly
from trunkline_server.backends.cuda import kernels
from trunkline_server.backends.cuda.device import Graph, HostDevice
from trunkline_server.weights.checkpoint import open_checkpoint

from gpu.lines import Lines
from gpu.models import NAMES, is_fp8, shape_of
from gpu.process import phase_lines
from gpu.shapes import write_model
from gpu.steps import measure_decode, measure_prefill

HOPPER, WARP_THREADS, PROCESSORS = 90, 32, 132
SHARED_BYTES = 227 << 10
NUM_LAYERS, POOL_TOKENS = 2, 20_000
NO_LIMITS = {"bytes_per_s": 1.0, "operations_per_s": 1.0}


class DryDriver:
    """Stands in for Triton's driver of NVIDIA GPUs. launched: how often each kernel was."""

    def __init__(self) -> None:
        self.launched: Counter[str] = Counter()
        self.utils = SimpleNamespace(
            get_device_properties=lambda _device: {"max_shared_mem": SHARED_BYTES},
            load_binary=lambda *_: (1, 1, 0, 0, 1024),
        )

    def launcher_cls(self, _source: object, metadata: Any) -> Callable[..., None]:
        def launch(*_: object) -> None:
            self.launched[metadata.name] += 1

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", HOPPER, WARP_THREADS)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class _Replayed:
    def replay(self) -> None:
        pass


class DryDevice(HostDevice):
    """Captures by launching."""

    can_capture = True

    def capture(self, work: Callable[[], object]) -> Graph:
        work()
        return _Replayed()


def as_on_hopper() -> DryDriver:
    """From now on kernels are compiled for Hopper, on tensors of the CPU."""
    dry = DryDriver()
    driver.set_active(dry)
    for found in pkgutil.iter_modules(kernels.__path__):
        module: Any = importlib.import_module(f"{kernels.__name__}.{found.name}")
        for name, value in (("num_processors", PROCESSORS), ("_num_processors", PROCESSORS)):
            if hasattr(module, name):
                setattr(module, name, lambda _device, value=value: value)
        if hasattr(module, "has_tensor_descriptors"):
            module.has_tensor_descriptors = lambda _device: True
    assembly.INTERPRETED_ROWS, assembly.INTERPRETED_ROW_MULTIPLE = 1, assembly.ROW_MULTIPLE
    return dry


def run(model: str, kv_cache_dtype: str, lines: Lines) -> None:
    dry, compiled = as_on_hopper(), []

    def listen(**told: Any) -> None:
        if not told["cache_hit"]:
            compiled.append(told["src"])

    knobs.compilation.listener = listen
    began = time.perf_counter()
    shape = replace(shape_of(model), num_hidden_layers=NUM_LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(shape, Path(folder), "cpu", is_fp8=is_fp8(model))
        backend = assembly.build(
            open_checkpoint(path), device=DryDevice(16 << 30), kv_cache_dtype=kv_cache_dtype,
            max_batch_total_tokens=POOL_TOKENS,
        )  # fmt: skip
    for batch in (1, 8, 64):
        measure_decode(backend, shape, batch, 100, 3, NO_LIMITS)
    for length in (512, 8192):
        measure_prefill(backend, shape, length, 1, NO_LIMITS)
    seconds = time.perf_counter() - began
    row = {"compiled": len(compiled), "launches": sum(dry.launched.values()), "seconds": seconds}
    lines.figure(f"{model}, K and V {kv_cache_dtype}", "compiled for Hopper", row)
    lines.check(f"dry: {model}, K and V {kv_cache_dtype}: all compile for Hopper", holds=dry.launched.total() > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="llama-1b")
    parser.add_argument("--kv-cache-dtype", default="auto")
    options = parser.parse_args()
    run(options.model, options.kv_cache_dtype, phase_lines())
    return 0


if __name__ == "__main__":
    sys.exit(main())

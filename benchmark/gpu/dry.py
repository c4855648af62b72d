"""Compiles every kernel of a model's steps for a GPU without having one. Launches do nothing.

PYTHONPATH=benchmark:server python -m gpu.dry [--model NAME] [--kv-cache-dtype auto] [--dtype bf16] [--capability 9.0]

Kernels get the arguments that they would get on a GPU, so this finds those that Triton's compiler refuses, that need
more shared memory than a multiprocessor has, or that spill registers. It uses two layers of the model and takes a
minute or two.
"""

from __future__ import annotations

import argparse
import importlib
import os
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
from tests.cuda.compiled import HOPPER, OTHER_CARDS
from tests.cuda.cubin import resources
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from trunkline_server.backends.cuda import build as assembly
from trunkline_server.backends.cuda import kernels, loading
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.device import Device, Graph
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.kernels.spills import MAX_SPILLED_BYTES
from trunkline_server.backends.cuda.runner import ROW_MULTIPLE
from trunkline_server.weights.checkpoint import open_checkpoint

from gpu import assumptions
from gpu.assumptions import CHECKS, Place
from gpu.lines import Lines
from gpu.process import phase_lines
from gpu.shapes import NAMES, Shape, is_fp8, shape_of, write_model
from gpu.steps import measure_decode, measure_prefill

WARP_THREADS = 32
CARDS = (HOPPER, Card((8, 6), 72), *OTHER_CARDS)
# A multiple of 16 blocks, as real pools have: Triton compiles for divisibility by 16.
NUM_LAYERS, POOL_TOKENS = 2, 1 << 17
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
NO_LIMITS = {"bytes_per_s": 1.0, "operations_per_s": 1.0}
# Memory of the substitute: more than two layers of each model take, because callers limit the pool.
FREE_BYTES = 100 << 30


class _IdleGraph:
    def replay(self) -> None:
        pass


class IdleDevice(Device):
    """Captures a step by running it once and replays nothing. Inputs and results are copied within host memory."""

    can_capture = True

    def free_bytes(self) -> tuple[int, int]:
        return FREE_BYTES, FREE_BYTES

    def capture(self, work: Callable[[], object]) -> Graph:
        work()
        return _IdleGraph()


class DryDriver:
    """A substitute for Triton's NVIDIA driver, which counts the launches of each kernel in `launched`."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.launched: Counter[str] = Counter()
        self.utils = SimpleNamespace(
            get_device_properties=lambda _device: {"max_shared_mem": card.shared_bytes},
            load_binary=lambda *_: (1, 1, 0, 0, 1024),
        )

    def launcher_cls(self, _source: object, metadata: Any) -> Callable[..., None]:
        def launch(*_: object) -> None:
            self.launched[metadata.name] += 1

        return launch

    def get_current_target(self) -> GPUTarget:
        major, minor = self.card.capability
        return GPUTarget("cuda", 10 * major + minor, WARP_THREADS)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def as_on(card: Card) -> DryDriver:
    """Makes Triton compile kernels for the card although tensors are on the CPU."""
    dry = DryDriver(card)
    driver.set_active(dry)
    answers = {"card_of": card, "num_programs": card.num_processors, "copies_tensors": card.copies_tensors}
    found = [
        importlib.import_module(f"{kernels.__name__}.{one.name}") for one in pkgutil.iter_modules(kernels.__path__)
    ]
    for module in (*found, assembly, loading):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, lambda _device, answer=answer: answer)
    assembly.INTERPRETED_ROWS, assembly.INTERPRETED_ROW_MULTIPLE = 1, ROW_MULTIPLE
    return dry


def built(model: str, num_layers: int = NUM_LAYERS, **options: Any) -> tuple[CudaBackend, Shape]:
    """Returns a backend of the first layers of a model, as on a card. Its step shapes are launched as for a capture."""
    shape = replace(shape_of(model), num_hidden_layers=num_layers)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(shape, Path(folder), "cpu", is_fp8=is_fp8(model))
        return assembly.build(open_checkpoint(path), device=IdleDevice(), **options), shape


def launch_steps(model: str, kv_cache_dtype: str, dtype: str) -> None:
    """Launches what steps of a model launch, whatever the size of its pool and its number of layers."""
    backend, shape = built(
        model, kv_cache_dtype=kv_cache_dtype, dtype=DTYPES[dtype], max_batch_total_tokens=POOL_TOKENS
    )
    for batch in (1, 8, 64):
        measure_decode(backend, shape, batch, 100, 3, NO_LIMITS)
    for length in (512, 8192):
        measure_prefill(backend, shape, length, 1, NO_LIMITS)


def run(model: str, kv_cache_dtype: str, dtype: str, card: Card, lines: Lines) -> None:
    dry = as_on(card)
    # Name, spilled bytes per thread and shared memory of each compiled kernel.
    compiled: list[tuple[str, int, int]] = []

    def listen(*, metadata: dict[str, Any], metadata_group: dict[str, str], **_: Any) -> None:
        cubin = next(Path(path) for path in metadata_group.values() if path.endswith(".cubin"))
        compiled.append((metadata["name"], resources(cubin).spilled_bytes, metadata["shared"]))

    knobs.compilation.listener = listen
    began = time.perf_counter()
    launch_steps(model, kv_cache_dtype, dtype)
    seconds = time.perf_counter() - began
    spilling = sorted({f"{name} {size}" for name, size, _ in compiled if size > MAX_SPILLED_BYTES})
    row = {
        "model": model, "activations": dtype, "K and V": kv_cache_dtype, "compiled": len(compiled),
        "launches": dry.launched.total(),
        "largest shared kib": max(shared for *_, shared in compiled) / 1024,
        f"spills over {MAX_SPILLED_BYTES} bytes": ", ".join(spilling) or "none", "seconds": seconds,
    }  # fmt: skip
    lines.figure(f"compiled for compute capability {card.name}", "kernels", row)
    name = f"{model}, {dtype}, K and V {kv_cache_dtype}: all kernels compile for compute capability {card.name}"
    lines.check(name, holds=dry.launched.total() > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("small", *NAMES), default="llama-1b")
    parser.add_argument("--check", choices=("products", "attention"), help="compile for `gpu.assumptions` instead")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="of activations")
    parser.add_argument("--capability", choices=[card.name for card in CARDS], default="9.0", help="compute capability")
    options = parser.parse_args()
    card = next(card for card in CARDS if card.name == options.capability)
    if options.check is None:
        run(options.model, options.kv_cache_dtype, options.dtype, card, phase_lines())
        return 0
    as_on(card)
    # The library would multiply on the CPU, for minutes.
    vars(assumptions).update(library_linear=linear)
    with torch.inference_mode():
        # The results of the checks mean nothing.
        CHECKS[options.check](Place("cpu", is_gpu=True), Lines(Path(os.devnull), "dry"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The measuring phases, each a program: python -m gpu.measure PHASE --model NAME --path DIR."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpu.lines import Lines
from gpu.process import phase_lines
from gpu.shapes import INDEX, is_fp8, shape_of, weight_bytes, write_model
from gpu.traffic import SIZES, check

# The most important sizes come first, in case time runs out.
DECODE_BATCHES = (1, 64, 8, 256)
PREFILL_TOKENS = (8192, 512, 2048, 32_000)
HISTORY_TOKENS = (4096, 16_384, 60_000)
# Phases need them: `service` has gRPC, the messages made by protobuf, and the compiled module `_kernels`.
NEEDED = ("trunkline_server.service", "safetensors", "tokenizers", "gguf", "pytest")
LOAD = (64, 512, 128)
CONTEXT = 1024
# Room for weights beyond their own size.
ROOM_FACTOR = 1.05
SMALL: dict[str, Any] = {"max_batch_total_tokens": 256, "max_step_tokens": 16, "max_step_sequences": 2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--launcher", type=Path)
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    parser.add_argument("--kv-cache-dtype", default="auto", help="of traffic")
    parser.add_argument("--size", choices=sorted(SIZES), default="large", help="amount of traffic")
    options = parser.parse_args()
    PROGRAMS[options.program](options, "cuda" if torch.cuda.is_available() else "cpu", phase_lines())
    return 0


def _compiler(_options: argparse.Namespace, device: str, lines: Lines) -> None:
    """Launches a kernel, for which Triton builds its driver and a launcher with the C compiler."""
    from trunkline_server.backends.cuda.kernels.linear import linear
    from trunkline_server.backends.cuda.weights import DenseWeight

    began = time.perf_counter()
    ones = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    product = linear(ones, DenseWeight.of("w", ones), out_dtype=torch.float32)
    lines.check("the first kernel is built and computes", holds=bool((product == 16).all()))
    lines.figure("first launch", "start", {"kernels": "one", "seconds": time.perf_counter() - began})


def _weights(options: argparse.Namespace, device: str, lines: Lines) -> None:
    began = time.perf_counter()
    # The index is written last, so a model of an earlier run is complete (`--keep-scratch`).
    if not (options.path / INDEX).exists():
        options.path.mkdir(parents=True, exist_ok=True)
        free, needed = shutil.disk_usage(options.path).free, weight_bytes(options.model)
        if free < ROOM_FACTOR * needed:
            sys.exit(f"error: `{options.path}` has {free >> 20} MiB free, {needed >> 20} needed; hint: `--scratch DIR`")
        write_model(shape_of(options.model), options.path, device, is_fp8=is_fp8(options.model))
    size = sum(file.stat().st_size for file in options.path.glob("*.safetensors"))
    lines.figure(options.model, "weights", {"gb": size / 1e9, "written_s": time.perf_counter() - began})


def _start(options: argparse.Namespace, device: str, lines: Lines) -> None:
    """Measures a start that compiles every kernel, beside other phases. Later phases reuse the compiled kernels."""
    began = time.perf_counter()
    _build(options, device, max_batch_total_tokens=4096)
    lines.figure(options.model, "start", {"kernels": "not compiled yet", "seconds": time.perf_counter() - began})


def _steps(options: argparse.Namespace, device: str, lines: Lines) -> None:
    from gpu.probes import probe
    from gpu.steps import measure_decode, measure_idle, measure_prefill

    shape, is_tiny = shape_of(options.model), device == "cpu"
    limits = probe(device, 1 << 20, 64) if is_tiny else probe(device)
    lines.figure(options.model, "limits", limits)
    # Returns the memory of the probe, so that the backend can have it.
    torch.cuda.empty_cache()
    began = time.perf_counter()
    backend = _build(options, device)
    suffix = "" if options.numerics == "exact" else " fast"
    row = {"kernels": "compiled before", "seconds": time.perf_counter() - began}
    lines.figure(options.model, f"start{suffix}", row)
    batches, context, steps = ((1, 2), 8, 1) if is_tiny else (DECODE_BATCHES, CONTEXT, 32)
    lengths, repeats = ((8,), 1) if is_tiny else (PREFILL_TOKENS, 2)
    for batch, length in zip(batches, lengths, strict=False):
        lines.figure(options.model, f"decode{suffix}", measure_decode(backend, shape, batch, context, steps, limits))
        lines.figure(options.model, f"prefill{suffix}", measure_prefill(backend, shape, length, repeats, limits))
    for batch in batches[len(lengths) :]:
        lines.figure(options.model, f"decode{suffix}", measure_decode(backend, shape, batch, context, steps, limits))
    if device == "cuda":
        lines.figure(options.model, f"idle{suffix}", measure_idle(backend, shape, CONTEXT))


def _build(options: argparse.Namespace, device: str, **changes: Any) -> Any:
    from trunkline_server.backends.cuda.build import build
    from trunkline_server.weights.checkpoint import open_checkpoint

    changes = changes if device == "cuda" else SMALL
    return build(open_checkpoint(options.path), numerics=options.numerics, **changes)


def _traffic(options: argparse.Namespace, _: str, lines: Lines) -> None:
    vocab_size, size = shape_of(options.model).vocab_size, SIZES[options.size]
    check(options.path, vocab_size, options.launcher, options.kv_cache_dtype, size, lines)


def _requests(options: argparse.Namespace, device: str, lines: Lines) -> None:
    from gpu.requests import complete, measure_history, measure_load, prompt, serving

    vocab_size = shape_of(options.model).vocab_size
    load, lengths = (LOAD, HISTORY_TOKENS) if device == "cuda" else ((2, 6, 2), (20,))
    size = [] if device == "cuda" else ["--max-batch-total-tokens", "512", "--max-step-sequences", "4"]
    with serving(options.launcher, options.path, ["--backend", "cuda", *size]) as server:
        lines.figure(options.model, "server start", {"seconds": server.start_s})
        # The first request warms up and is not measured.
        complete(server, [prompt(1, load[1], vocab_size)], 2, 1)
        row = measure_load(server, vocab_size, *load)
        _figure_and_check(options.model, "requests", row, "same_alone", lines)
        for length in lengths:
            row = measure_history(server, vocab_size, length)
            _figure_and_check(options.model, "history", row, "same_warm", lines)


def _figure_and_check(model: str, table: str, row: dict[str, Any], key: str, lines: Lines) -> None:
    same = row.pop(key)
    lines.figure(model, table, row)
    lines.check(f"{model}: {table}: replies are the {key.replace('_', ' ')}", holds=same, detail=str(row))


def _tiers(options: argparse.Namespace, device: str, lines: Lines) -> None:
    from trunkline_server.backends.cuda.device import CudaDevice, Device

    from gpu.tiers import bus_rates, measure

    if device == "cuda":
        card = CudaDevice()
        card.use()
        row = bus_rates(card) | measure(card, options.model, HISTORY_TOKENS[-1])
    else:
        row = bus_rates(Device(), 1 << 20) | measure(Device(), options.model, 256)
    lines.figure(options.model, "tiers", row)
    # `measure` raises if a byte differs.
    lines.check(f"{options.model}: blocks return from the host unchanged", holds=True)


def machine() -> dict[str, Any]:
    """Returns facts about the machine, with the modules that phases need and that cannot be imported."""
    import numpy
    import triton

    facts: dict[str, Any] = {
        "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__,
        "numpy": numpy.__version__, "cores": os.cpu_count(), "is_gpu": torch.cuda.is_available(),
    }  # fmt: skip
    if facts["is_gpu"]:
        free, total = torch.cuda.mem_get_info()
        facts |= {
            "device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
            "free_gib": round(free / 2**30, 1), "total_gib": round(total / 2**30, 1), "cuda": torch.version.cuda,
        }  # fmt: skip
    else:
        facts["device"] = "no NVIDIA GPU, kernels in Triton's interpreter"
    return facts | {"missing": ", ".join(filter(None, map(_missing, NEEDED))) or "nothing"}


def _missing(name: str) -> str:
    """Returns why a module cannot be imported, or nothing if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  it is reported, also a refused version
        return f"{name} ({error})"
    return ""


PROGRAMS = {
    "compiler": _compiler,
    "weights": _weights,
    "start": _start,
    "steps": _steps,
    "requests": _requests,
    "traffic": _traffic,
    "tiers": _tiers,
}

if __name__ == "__main__":
    sys.exit(main())

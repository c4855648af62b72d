"""Speed of the cuda backend, beside the card's own limits and transformers.

PYTHONPATH=benchmark:server python -m gpu [--models llama-1b llama-8b] [--launcher PATH] [--minutes 7] [--output DIR]

Each part of a model is measured in a process of its own, so that one that fails or runs out of time leaves the others
their memory and their time; what it said stands in the results. `--tiny` takes the smallest shapes, without a GPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gpu import report
from gpu.shapes import SHAPES, write_model

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("steps", "requests", "transformers")
DECODE_BATCHES = (1, 8, 64, 256)
PREFILL_TOKENS = (512, 2048, 8192, 32_000)
HISTORY_TOKENS = (4096, 16_384, 60_000)
LOAD = (64, 512, 128)
# A part is not begun with less left.
MIN_PART_S = 20.0


def main() -> int:
    options = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.part is not None:
        print(json.dumps(_part(options, device)))
        return 0
    if device == "cpu" and not options.tiny:
        print("no NVIDIA GPU here: nothing is measured", file=sys.stderr)
        return 1
    results = measure(options, device)
    report.write(results, options.output)
    print((options.output / "gpu.md").read_text())
    problems = report.problems(results)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def measure(options: argparse.Namespace, device: str) -> dict[str, Any]:
    """All parts of all models, as long as the time lasts."""
    deadline = time.monotonic() + 60 * options.minutes
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.processor() or 'a CPU'}, interpreter"
    results: dict[str, Any] = {"device": name, "torch": torch.__version__, "models": {}}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for model in ("tiny",) if options.tiny else options.models:
            began = time.monotonic()
            path = write_model(SHAPES[model], Path(folder) / model, device)
            print(f"{model}: random weights in {time.monotonic() - began:.1f} s", file=sys.stderr)
            parts: dict[str, Any] = {}
            for part in options.parts:
                left = deadline - time.monotonic()
                parts |= _run_part(part, model, path, left) if left > MIN_PART_S else {part: "no time was left"}
            results["limits"] = parts.pop("limits", results.get("limits"))
            results["models"][model] = parts
            (path / "model.safetensors").unlink()
    if results["limits"] is None:
        del results["limits"]
    return results


def _run_part(part: str, model: str, path: Path, timeout_s: float) -> dict[str, Any]:
    """One part in a process of its own: its figures, or what it said at its end."""
    command = [sys.executable, "-m", "gpu", *sys.argv[1:], "--part", part, "--model", model, "--path", str(path)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {part: f"not done after {timeout_s:.0f} s"}
    print(f"{model}: {part} took {time.monotonic() - began:.1f} s", file=sys.stderr)
    if done.returncode != 0:
        print(done.stderr[-3000:], file=sys.stderr)
        return {part: "failed: " + (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _part(options: argparse.Namespace, device: str) -> dict[str, Any]:
    return {"steps": _steps, "requests": _requests, "transformers": _transformers}[options.part](options, device)


def _steps(options: argparse.Namespace, device: str) -> dict[str, Any]:
    from trunkline_server.backends.cuda.build import build
    from trunkline_server.backends.cuda.device import HostDevice
    from trunkline_server.weights.checkpoint import open_checkpoint

    from gpu.probes import probe
    from gpu.steps import measure_decode, measure_prefill

    is_tiny, shape = options.tiny, SHAPES[options.model]
    limits = probe(device, 1 << 20, 64) if is_tiny else probe(device)
    checkpoint, figures = open_checkpoint(options.path), {"limits": limits}
    small: dict[str, Any] = {"max_batch_total_tokens": 256, "max_step_tokens": 16, "max_step_sequences": 2}
    for numerics in ("exact",) if is_tiny else ("exact", "fast"):
        where = HostDevice() if device == "cpu" else None
        began = time.perf_counter()
        backend = build(checkpoint, numerics=numerics, device=where, **(small if is_tiny else {}))
        suffix = "" if numerics == "exact" else " fast"
        figures[f"start{suffix}"] = [{"seconds": time.perf_counter() - began}]
        batches, context, steps = ((1, 2), 8, 1) if is_tiny else (DECODE_BATCHES, 1024, 32)
        lengths, repeats = ((8,), 1) if is_tiny else (PREFILL_TOKENS, 2)
        figures[f"decode{suffix}"] = [
            measure_decode(backend, shape, batch, context, steps, limits) for batch in batches
        ]
        figures[f"prefill{suffix}"] = [measure_prefill(backend, shape, length, repeats, limits) for length in lengths]
        del backend
        if device == "cuda":
            torch.cuda.empty_cache()
    return figures


def _requests(options: argparse.Namespace, device: str) -> dict[str, Any]:
    from gpu.requests import measure_history, measure_load, serving

    if options.launcher is None:
        return {"requests": "not measured: no launcher was given (`--launcher`)"}
    if device == "cpu":
        return {"requests": "not measured: no GPU"}
    shape, log = SHAPES[options.model], Path(options.path) / "server.log"
    with serving(options.launcher, options.path, log, ["--backend", "cuda"]) as port:
        return {
            "requests": [measure_load(port, shape.vocab_size, *LOAD)],
            "history": measure_history(port, shape.vocab_size, HISTORY_TOKENS),
        }


def _transformers(options: argparse.Namespace, device: str) -> dict[str, Any]:
    from gpu.transformers_side import load, measure_continuous, measure_static

    model = load(options.path, device)
    if options.tiny:
        return {"transformers decode": [measure_static(model, 1, 8, 3, device)]}
    return {
        "transformers decode": [measure_static(model, batch, 1024, 33, device) for batch in DECODE_BATCHES[:3]],
        "transformers requests": [measure_continuous(model, *LOAD)],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-1b", "llama-8b"], choices=sorted(SHAPES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--launcher", type=Path, help="the built `trunkline`, beside it `trunkline-router`")
    parser.add_argument("--minutes", type=float, default=7.0, help="for everything")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the weights, 17 GB")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results/gpu")
    parser.add_argument("--tiny", action="store_true", help="the smallest shapes, also in the interpreter")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    return options


if __name__ == "__main__":
    sys.exit(main())

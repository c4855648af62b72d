"""Estimates how near a model's steps come to an H200's limits, from their launches and without a GPU.

PYTHONPATH=benchmark:server python -m gpu.roofline [--model llama-8b] [--kernels]

Builds two layers of the model as `gpu.dry` does and records each launch with its arguments instead of compiling it. The
rates below are assumptions: change those that a card refutes. An estimate compares two versions of the code; only
`make gpu-check` measures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from triton.runtime import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor
from trunkline_server.backends.cuda import build as assembly
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.device import Graph
from trunkline_server.backends.cuda.kernels.attention_plan import MAX_SPLIT_TOKENS, SPLIT
from trunkline_server.backends.cuda.kernels.attention_tile import TILE_POSITIONS
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.interface import SamplingParams
from trunkline_server.weights.checkpoint import open_checkpoint

from gpu.dry import NUM_LAYERS, IdleDevice, as_on
from gpu.shapes import Shape, shape_of, write_model
from gpu.steps import Sequences

H200 = Card((9, 0), 132)
# Rates that good kernels reach on an H200: memory and L2 cache in bytes, bf16 products in operations a second.
MEMORY_RATE, CACHE_RATE, PRODUCT_RATE = 4.3e12, 7.5e12, 790e12
# Bytes that must be in flight to reach the memory's rate, and the time that the first of them take.
BYTES_IN_FLIGHT, LATENCY_S = 4 << 20, 1e-6
# Time of one of a search's 33 passes over a list of tokens, by one program.
PASS_S, PASSES = 0.4e-6, 33
# Time from the end of a kernel until the next one in a graph works at its rate.
GAP_S = 2.5e-6
# Attention's exponentials and other operations on scores, a second, which do not overlap its products.
EXPONENTIAL_RATE, SCALAR_RATE = 132 * 16 * 1.75e9, 132 * 128 * 1.75e9
OPERATIONS_OF_SCORE = 8
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
DECODES, PROMPT = ((1, 1024, None), (1, 1024, DRAWN), (64, 1024, None), (64, 1024, DRAWN)), 8192
# Bytes that sampling kernels read and write for each token of each row. `_narrow_kernel` mostly ends at once.
_SAMPLING_BYTES = {"_peaks_kernel": 4, "_weigh_kernel": 8, "_narrow_kernel": 0, "_list_kernel": 4}
# Arguments of row kernels of which a launch reads only a few rows, or nothing.
_TABLES = {"pool", "scales", "cos", "sin", "factors", "means", "bias", "weight_scales", "row_scales", "previous"}


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid, arguments and constants by name, and the step's chunks: rows and context of each."""

    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    chunks: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Work:
    """The least bytes from memory and operations of a launch, and its expected seconds without the gap before it."""

    num_bytes: float = 0.0
    operations: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.num_bytes + other.num_bytes, self.operations + other.operations, self.seconds + other.seconds
        )  # fmt: skip

    def times(self, count: int) -> Work:
        return Work(count * self.num_bytes, count * self.operations, count * self.seconds)

    @property
    def limit_s(self) -> float:
        return max(self.num_bytes / MEMORY_RATE, self.operations / PRODUCT_RATE)


def product(
    shape: tuple[int, int, int],
    tile: tuple[int, int, int],
    num_stages: int,
    splits: tuple[int, bool],
    element_bytes: int,
) -> Work:
    """Estimates a product of a weight [N, K] with T rows. shape: N, T, K; tile: its blocks of them.

    splits: of K, and whether each has its own program. Programs run in waves of as many as fit. A wave takes as
    long as the slowest of memory, L2 cache and tensor cores.
    """
    outputs, rows, inputs = shape
    block_n, block_t, block_k = tile
    num_splits, is_parallel = splits
    num_tiles = -(-outputs // block_n) * -(-rows // block_t)
    num_programs = num_tiles * (num_splits if is_parallel else 1)
    depth = inputs / (num_splits if is_parallel else 1)
    weight_bytes, row_bytes = outputs * inputs * element_bytes, rows * inputs * element_bytes
    shared = num_stages * (block_n + block_t) * block_k * element_bytes + 1024
    slots = H200.num_processors * max(1, (H200.shared_bytes + 1024) // shared)
    # Sums of splits are written and read again: by another launch, or by the program that adds the next split.
    if is_parallel:
        partial_bytes = 8 * num_splits * rows * outputs if num_splits > 1 else 0
    else:
        partial_bytes = 8 * (num_splits - 1) * num_tiles * block_n * block_t
    num_bytes = weight_bytes + row_bytes + 2 * rows * outputs
    seconds = partial_bytes / CACHE_RATE
    for begin in range(0, num_programs, slots):
        count = min(slots, num_programs - begin)
        in_flight = count * (num_stages - 1) * block_n * block_k * element_bytes
        memory = num_bytes * count / num_programs / MEMORY_RATE / min(1.0, in_flight / BYTES_IN_FLIGHT)
        cache = count * (block_n + block_t) * depth * element_bytes / CACHE_RATE
        busiest = -(-count // H200.num_processors)
        operations = 2 * block_n * block_t * depth * busiest * H200.num_processors
        seconds += max(memory, cache, operations / PRODUCT_RATE)
    return Work(num_bytes, 2.0 * outputs * rows * inputs, seconds)


def split_attention(chunks: Sequence[tuple[int, int]], heads: tuple[int, int, int], rows: int, programs: int) -> Work:
    """Estimates attention over splits. heads: query heads, KV heads and their size; rows: of a tile."""
    query_heads, kv_heads, size = heads
    work, num_items = Work(), 0
    for tokens, context in chunks:
        if tokens > MAX_SPLIT_TOKENS:
            continue
        num_bytes = 4.0 * context * kv_heads * size
        partials = 4.0 * tokens * -(-context // SPLIT) * query_heads * size
        num_items += -(-context // SPLIT) * kv_heads * -(-tokens * (query_heads // kv_heads) // rows)
        operations = 4.0 * tokens * context * query_heads * size
        work += Work(num_bytes, operations, max(num_bytes / MEMORY_RATE, operations / PRODUCT_RATE))
        work += Work(seconds=partials / CACHE_RATE)
    # A program begins to read an item when it is done with the one before.
    return work + Work(seconds=num_items / programs * LATENCY_S)


def whole_attention(chunks: Sequence[tuple[int, int]], heads: tuple[int, int, int], rows: int) -> Work:
    """Estimates attention of tiles that go through all splits. heads, rows: as for `split_attention`."""
    query_heads, kv_heads, size = heads
    tokens_of_tile, tile = rows // (query_heads // kv_heads), TILE_POSITIONS.value
    work = Work()
    for tokens, context in chunks:
        if tokens <= MAX_SPLIT_TOKENS:
            continue
        before = context - tokens
        operations = 4.0 * size * query_heads * (tokens * before + tokens * (tokens + 1) / 2)
        ends = (before + min(first + tokens_of_tile, tokens) for first in range(0, tokens, tokens_of_tile))
        scores = sum(-(-end // tile) * tile for end in ends) * rows * kv_heads
        seconds = scores * (4 * size / PRODUCT_RATE + 1 / EXPONENTIAL_RATE + OPERATIONS_OF_SCORE / SCALAR_RATE)
        work += Work(4.0 * context * kv_heads * size, operations, seconds)
    return work


def work_of(launch: Launch) -> Work:
    """Estimates one launch. Raises KeyError if an argument has another name than expected."""
    arguments, constants = launch.arguments, launch.constants
    if launch.kernel in ("_parallel_kernel", "_persistent_kernel", "_gated_kernel"):
        # A program of the last multiplies a block of each half, gate and up, with the same rows.
        halves = 2 if launch.kernel == "_gated_kernel" else 1
        weight = arguments["weight"]
        values = weight.base if isinstance(weight, TensorDescriptor) else weight
        return product(
            (halves * arguments["num_outputs"], arguments["num_rows"], arguments["num_inputs"]),
            (halves * constants["BLOCK_N"], constants["BLOCK_T"], constants["BLOCK_K"]), constants["num_stages"],
            (constants.get("NUM_SPLITS", 1), launch.kernel == "_parallel_kernel"), values.element_size(),
        )  # fmt: skip
    if launch.kernel in ("split_kernel", "decode_kernel", "whole_kernel"):
        query_heads = arguments["q"].shape[1] // constants["D"]
        heads = query_heads, query_heads // constants["GROUP"], constants["D"]
        if launch.kernel == "whole_kernel":
            return whole_attention(launch.chunks, heads, constants["ROWS"])
        work = split_attention(launch.chunks, heads, constants["ROWS"], launch.grid[0])
        # The last program reads what others have stored.
        return work + Work(seconds=LATENCY_S) if launch.kernel == "decode_kernel" else work
    if launch.kernel in ("merge_kernel", "_plan_kernel", "_fill_kernel", "_embedding_kernel", "_largest_kernel"):
        return Work()
    if launch.kernel in _SAMPLING_BYTES:
        num_bytes = float(_SAMPLING_BYTES[launch.kernel] * arguments["num_rows"] * arguments["vocab_size"])
        return Work(num_bytes, seconds=num_bytes / MEMORY_RATE)
    if launch.kernel == "_choose_kernel":
        # One search for the token, and one for a filter.
        return Work(seconds=(1 + constants["FILTERS"]) * PASSES * PASS_S)
    # The others read and write rows.
    tensors = {
        tensor.data_ptr(): tensor.nbytes
        for name, tensor in arguments.items() if isinstance(tensor, torch.Tensor) and name not in _TABLES
    }  # fmt: skip
    num_bytes = float(sum(tensors.values()))
    return Work(num_bytes, seconds=num_bytes / MEMORY_RATE)


def of_model(counts: dict[str, int], num_layers: int) -> dict[str, int]:
    """Returns the launches of the whole model from those of `NUM_LAYERS` layers; a remainder is outside the layers."""
    return {name: count // NUM_LAYERS * num_layers + count % NUM_LAYERS for name, count in counts.items()}


class _Recorder(IdleDevice):
    """Records launches; replaying a graph records those of its capture again."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []

    def record(self, kernel: Any, *arguments: Any, grid: tuple[int, ...], warmup: bool, **constants: Any) -> None:
        names = dict(zip(kernel.arg_names, arguments, strict=False))
        self.launches.append(Launch(kernel.fn.__name__, grid, names, constants))

    def capture(self, work: Callable[[], object]) -> Graph:
        begin = len(self.launches)
        work()
        captured, launches = self.launches[begin:], self.launches

        class Recorded:
            def replay(self) -> None:
                launches.extend(captured)

        return Recorded()


def _steps(backend: CudaBackend, shape: Shape, recorder: _Recorder) -> dict[str, list[Launch]]:
    """Returns the launches of each measured shape."""
    found: dict[str, list[Launch]] = {}
    for batch, context, params in DECODES:
        sequences = Sequences(backend)
        for number in range(batch):
            sequences.start_random(number, context, shape.vocab_size, params)
            sequences.prefill(number)
        sequences.drain()
        recorder.launches.clear()
        sequences.decode(1)
        how = "" if params is None else ", drawn"
        found[f"decode {batch}{how}, context {context}"] = _with_chunks(recorder, [(1, context + 1)] * batch)
        sequences.end()
    sequences, most = Sequences(backend), backend.info.max_step_tokens
    sequences.start_random(0, PROMPT, shape.vocab_size)
    name = f"prefill {PROMPT}"
    found[name] = []
    for first in range(0, PROMPT, most):
        rows = min(most, PROMPT - first)
        recorder.launches.clear()
        backend.begin([sequences.chunk(0, first, rows, first + rows == PROMPT)])
        backend.finish()
        found[name] += _with_chunks(recorder, [(rows, first + rows)])
    return found


def _with_chunks(recorder: _Recorder, chunks: Sequence[tuple[int, int]]) -> list[Launch]:
    return [replace(launch, chunks=chunks) for launch in recorder.launches]


def _rows(name: str, launches: Sequence[Launch], num_layers: int) -> list[tuple[str, int, Work]]:
    """Returns launches of the whole model and their work: the step's, then that of each kernel by product shape."""
    grouped: dict[str, list[Work]] = {}
    for launch in launches:
        label = launch.kernel.strip("_")
        if "num_inputs" in launch.arguments:
            label += f" [{launch.arguments['num_outputs']}, {launch.arguments['num_inputs']}]"
        # Steps of a prompt have different contexts, so each is scaled by itself.
        grouped.setdefault(f"{label} {max(context for _, context in launch.chunks)}", []).append(work_of(launch))
    counts = of_model({label: len(works) for label, works in grouped.items()}, num_layers)
    rows = [(label, counts[label], works[0].times(counts[label])) for label, works in grouped.items()]
    return [(name, sum(counts.values()), sum((work for *_, work in rows), Work())), *rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama-8b", "llama-1b"), default="llama-8b")
    parser.add_argument("--kernels", action="store_true", help="list each kernel of a step")
    options = parser.parse_args()
    as_on(H200)
    whole, recorder = shape_of(options.model), _Recorder()
    JITFunction.run = lambda kernel, *arguments, **constants: recorder.record(kernel, *arguments, **constants)
    shape = replace(whole, num_hidden_layers=NUM_LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = open_checkpoint(write_model(shape, Path(folder), "cpu"))
        backend = assembly.build(checkpoint, device=recorder, max_batch_total_tokens=80_000)
    print("| step | launches | GB | TFLOP | limit, ms | expected, ms | of it gaps | share |")
    print("|---" + "|--:" * 7 + "|")
    for name, launches in _steps(backend, shape, recorder).items():
        rows = _rows(name, launches, whole.num_hidden_layers)
        for label, count, work in rows if options.kernels else rows[:1]:
            gaps = count * GAP_S
            expected = work.seconds + gaps
            print(
                f"| {label} | {count} | {work.num_bytes / 1e9:.2f} | {work.operations / 1e12:.2f} "
                f"| {1e3 * work.limit_s:.2f} | {1e3 * expected:.2f} | {1e3 * gaps:.2f} "
                f"| {100 * work.limit_s / expected:.0f} % |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

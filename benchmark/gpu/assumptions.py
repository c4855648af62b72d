"""Checks the assumptions behind exactness that only a device can confirm, with random numbers and real shapes.

PYTHONPATH=benchmark:server python -m gpu.assumptions NAME

- `products`: tensor-core instructions of every width add in the same order. The results also say whether cuBLAS without
  room for partial sums does, in which case exact prefill could use it.
- `attention`: a query's row has the same result whether its context is split or not, alone or in a batch.
- `steps`: replaying a graph equals launching its kernels, two steps in flight equal one, and a sequence has the same
  results in batches of any size.

In Triton's interpreter, shapes are small and numbers are chosen so that sums are exact, because NumPy guarantees no
order of addition in products.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tests.plans import changed
from trunkline_server._proto.shard_pb2 import SamplingParams
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build
from trunkline_server.backends.cuda.device import CudaDevice, Device
from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.kernels.linear import library_linear, linear
from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.linear_grouped import MAX_REGISTER_ROWS
from trunkline_server.backends.cuda.kernels.product import ProductEnd
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight, padded
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight
from trunkline_server.backends.interface import sampling_params
from trunkline_server.weights.checkpoint import open_checkpoint

from gpu.lines import Lines
from gpu.process import phase_lines
from gpu.shapes import SHAPES, write_model
from gpu.steps import Outcomes, Sequences

# The products of Llama-3-8B for query, key and value, for gate and up, and for down. The last one has many splits.
PRODUCT_SHAPES = ((6144, 4096), (28_672, 4096), (4096, 14_336), (64, 8192))
ROWS = (1, 2, 3, 8, 9, 16, 17, 32, 33, 48, 64, 65, 100, 128, 129, 256, 300)
NO_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
SAMPLED = sampling_params(
    temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1, frequency_penalty=0.2, logprobs=True,
    num_top_logprobs=3,
)  # fmt: skip
GREEDY = sampling_params(logprobs=True, num_top_logprobs=3)


@dataclass(frozen=True)
class Place:
    """The device that is checked. is_gpu: sizes are those of a GPU, also where kernels are only compiled for one."""

    device: str
    is_gpu: bool

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randint(low, high, shape, generator=generator)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Returns f32 numbers, random on a GPU and small integers in the interpreter."""
        if not self.is_gpu:
            return self.integers(-4, 5, *shape).float()
        generator = torch.Generator(self.device).manual_seed(sum(shape))
        return torch.randn(*shape, generator=generator, device=self.device)


def weights(place: Place, num_outputs: int, num_inputs: int) -> Iterable[tuple[str, DeviceWeight]]:
    """Yields a weight of each kind with its name."""
    slices = MappingProxyType({"w": (0, num_outputs)})
    values = place.numbers(num_outputs, num_inputs)
    for dtype in (torch.bfloat16, torch.float16):
        yield str(dtype)[6:], DenseWeight.of("w", values.to(dtype))
    scales = torch.ones(num_outputs, device=place.device)
    one = torch.ones(1, device=place.device)
    for dtype in (torch.float8_e4m3fn, torch.int8):
        if dtype.is_floating_point and not card_of(torch.device(place.device)).multiplies_fp8:
            continue
        yield str(dtype)[6:], ScaledWeight(
            num_outputs=num_outputs, num_inputs=num_inputs, dtype=torch.bfloat16, slices=slices, scales=scales,
            values=(values if dtype.is_floating_point else (values * 20).clamp(-127, 127).round()).to(dtype),
            input_scale=None if place.is_gpu else one,
        )  # fmt: skip
    codes = torch.nn.functional.pad(values.to(torch.float8_e4m3fn).view(torch.uint8), (0, -num_inputs % 128))
    yield "e4m3 made bf16", GroupedWeight(
        num_outputs=num_outputs, num_inputs=num_inputs, dtype=torch.bfloat16, slices=slices, bits=8, quants=codes,
        group_size=padded(num_inputs), scales=scales[:, None],
    )  # fmt: skip
    bytes_ = place.integers(0, 256, num_outputs, padded(num_inputs) // 2).to(torch.uint8).to(place.device)
    group_scales = place.integers(1, 4, num_outputs, padded(num_inputs) // 32).to(torch.float16).to(place.device)
    yield "4 bits", GroupedWeight(
        num_outputs=num_outputs, num_inputs=num_inputs, dtype=torch.bfloat16, slices=slices, bits=4, quants=bytes_,
        group_size=32, scales=group_scales, zero_point=8,
    )  # fmt: skip


def check_products(place: Place, lines: Lines) -> None:
    shapes = PRODUCT_SHAPES if place.is_gpu else ((40, 528),)
    counts = ROWS if place.is_gpu else (1, 17, 65)
    most = max(ROWS) if place.is_gpu else 70
    for num_outputs, num_inputs in shapes:
        shape = f"[{num_outputs}, {num_inputs}]"
        for kind, weight in weights(place, num_outputs, num_inputs):
            x = place.numbers(most, num_inputs).to(weight.dtype)
            whole = linear(x, weight, out_dtype=torch.float32)
            differing = []
            for rows in (rows for rows in counts if rows < most):
                for part in (slice(0, rows), slice(most - rows, most)):
                    if not torch.equal(linear(x[part], weight, out_dtype=torch.float32), whole[part]):
                        differing.append(f"{rows} rows from {part.start}")
            finite = bool(whole.isfinite().all())
            name = f"products: {kind} {shape} is the same for every number of rows"
            lines.check(name, holds=finite and not differing, detail=", ".join(differing))
            if isinstance(weight, GroupedWeight):
                _check_register_operand(x[: min(counts[-1], MAX_REGISTER_ROWS)], weight, f"{kind} {shape}", lines)
            if isinstance(weight, DenseWeight):
                lines.figure(
                    "cuBLAS", "library products", {"product": f"{kind} {shape}"} | try_library(x, weight, counts)
                )


def _check_register_operand(x: torch.Tensor, weight: GroupedWeight, name: str, lines: Lines) -> None:
    """Compares a product whose weights are made in registers with that of the same weights in shared memory."""
    made = linear(x, weight, out_dtype=torch.float32)
    empty = torch.empty((weight.num_outputs, weight.num_inputs), dtype=weight.dtype, device=x.device)
    dense = DenseWeight.of("w", dequantized_rows(weight, None, empty))
    same = torch.equal(made, linear(x, dense, out_dtype=torch.float32))
    lines.check(f"products: {name} from registers as from shared memory", holds=same)


def try_library(x: torch.Tensor, weight: DenseWeight, counts: Sequence[int]) -> dict[str, str]:
    """Says whether the library's product of every number of rows has the same bits, and those of our kernel without
    splits. cuBLAS gets no room for partial sums, which it reads when it is first used.
    """
    os.environ |= NO_WORKSPACE
    whole = library_linear(x, weight)
    differing = [n for n in counts if not torch.equal(library_linear(x[:n], weight), whole[:n])]
    plan = ProductPlan(*weight.shape, num_splits=1, split_elements=padded(weight.num_inputs))
    ours = dense_linear(x, weight.values, plan, ProductEnd(), torch.empty_like(whole))
    assert isinstance(ours, torch.Tensor), "without splits nothing is left to add"
    share = float((ours != whole).float().mean())
    return {
        "differs for rows": ", ".join(map(str, differing)) or "none",
        "elements unlike our kernel's": f"{share:.2%}" if share else "none",
    }


def check_attention(place: Place, lines: Lines) -> None:
    """Compares rows of a long prompt computed at once with the same rows in pieces, beside others, split or not."""
    from tests.cuda.kv_oracle import make_scene
    from trunkline_server.backends.cuda.kernels.attention_plan import MAX_SPLIT_TOKENS, SPLIT

    heads: dict[str, Any] = (
        {"num_heads": 32, "num_kv_heads": 8, "head_size": 128, "block_size": 64} if place.is_gpu else {}
    )
    first, num_rows = (3 * SPLIT - 20, 200) if place.is_gpu else (SPLIT - 10, MAX_SPLIT_TOKENS + 6)
    chunks = [(0, MAX_SPLIT_TOKENS), (MAX_SPLIT_TOKENS, num_rows), (3, 4), (21, 22), (num_rows - 1, num_rows)]
    for format in ("bf16", "f16", "fp8", "int8", "int4"):
        if not place.is_gpu and format in ("fp8", "int4"):
            continue  # no numbers make their sums exact
        whole = make_scene(
            [(first + num_rows, num_rows)], device=place.device, format=format, is_exact=not place.is_gpu, **heads
        )
        entries = [(20, 3), *((first + end, end - begin) for begin, end in chunks)]
        cut = make_scene(entries, device=place.device, format=format, **heads)
        cut.pool, cut.tables = whole.pool, torch.cat([whole.tables.flip(1)] + [whole.tables] * len(chunks))
        for index, (begin, end) in enumerate(chunks):
            cut.queries[cut.rows(index + 1)] = whole.queries[begin:end]
        for window in (None, 150):
            at_once = whole.attend(window=window)
            differing = []
            for max_partial_rows in (4096, 17, 0):
                pieces = cut.attend(window=window, max_partial_rows=max_partial_rows)
                for index, (begin, end) in enumerate(chunks):
                    if not torch.equal(pieces[cut.rows(index + 1)], at_once[begin:end]):
                        differing.append(f"rows {begin} to {end} with room for {max_partial_rows}")
            name = f"attention: {format}, window {window}: cut or whole, split or not"
            lines.check(name, holds=not differing and bool(at_once.isfinite().all()), detail=", ".join(differing))


class Model:
    """A small model, from which backends with and without graphs are built."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.shape = SHAPES["small" if place.is_gpu else "tiny"]
        self._path = write_model(self.shape, folder, place.device)

    def build(self, *, captures: bool) -> CudaBackend:
        size: dict[str, Any] = (
            {"max_step_tokens": 512, "max_step_sequences": 64, "max_batch_total_tokens": 1 << 16}
            if self.place.is_gpu
            else {"max_step_tokens": 16, "max_step_sequences": 4, "max_batch_total_tokens": 1024}
        )
        device = CudaDevice() if self.place.is_gpu else Device()
        return build(open_checkpoint(self._path), device=device, captures=captures, **size)

    def prompt(self, number: int) -> list[int]:
        length = (40 + 37 * number) % 300 + 1 if self.place.is_gpu else 3 + number
        generator = torch.Generator().manual_seed(number)
        tokens: list[int] = torch.randint(2, self.shape.vocab_size, (length,), generator=generator).tolist()
        return tokens

    @property
    def num_decodes(self) -> int:
        return 24 if self.place.is_gpu else 3


def generate(
    backend: CudaBackend, model: Model, numbers: Iterable[int], *, in_flight: int, params: SamplingParams
) -> dict[int, Outcomes]:
    """Generates for several sequences. Each prefills in its own steps, then all decode in the same steps."""
    sequences = Sequences(backend, in_flight)
    for number in numbers:
        sequences.start(number, model.prompt(number), changed(params, seed=number))
    for number in sequences.lengths:
        sequences.prefill(number)
    sequences.decode(model.num_decodes)
    sequences.end()
    failed = [one for outcomes in sequences.outcomes.values() for one in outcomes if one.HasField("error")]
    assert not failed, failed
    return sequences.outcomes


def check_steps(place: Place, lines: Lines) -> None:
    """Checks that graphs, two steps in flight and batch sizes change no bit of tokens and logprobs."""
    batches = (1, 2, 3, 7, 8, 9, 24, 33, 64) if place.is_gpu else (1, 3)
    with tempfile.TemporaryDirectory() as folder:
        model = Model(place, Path(folder))
        backend = model.build(captures=place.is_gpu)
        for name, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
            alone = _alone(backend, model, min(8, max(batches)), params)
            for in_flight in (1, 2):
                for batch in batches:
                    found = generate(backend, model, range(batch), in_flight=in_flight, params=params)
                    differing = [n for n in range(min(batch, len(alone))) if found[n] != alone[n]]
                    steps = "two steps in flight" if in_flight == 2 else "one step at a time"
                    check = f"batches: {name}, {batch} sequences, {steps}: as alone"
                    lines.check(check, holds=not differing, detail=f"differ: {differing}")
            if place.is_gpu:
                lines.check(f"graphs: {name}: steps were replayed", holds=backend.runner.num_replayed > 0)
                eager = model.build(captures=False)
                found = _alone(eager, model, len(alone), params)
                differing = [number for number, output in found.items() if output != alone[number]]
                holds = not differing and eager.runner.num_replayed == 0
                lines.check(f"graphs: {name}: replayed as launched", holds=holds, detail=f"differ: {differing}")


def _alone(backend: CudaBackend, model: Model, count: int, params: SamplingParams) -> dict[int, Outcomes]:
    return {number: generate(backend, model, [number], in_flight=1, params=params)[number] for number in range(count)}


CHECKS: dict[str, Callable[[Place, Lines], None]] = {
    "products": check_products,
    "attention": check_attention,
    "steps": check_steps,
}


if __name__ == "__main__":
    IS_GPU = torch.cuda.is_available()
    with torch.inference_mode():
        CHECKS[sys.argv[1]](Place("cuda" if IS_GPU else "cpu", IS_GPU), phase_lines())

"""Measures steps of the cuda backend without a server: decode by batch size, prefill by prompt length."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from tests.plans import new_start
from trunkline_server._proto.shard_pb2 import Chunk, SamplingParams, SequenceResult
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.interface import sampling_params

from gpu.shapes import Shape

ELEMENT_BYTES = 2
WARM_STEPS = 3
Outcomes: TypeAlias = list[SequenceResult]


class Sequences:
    """Sequences on a backend, each with its own blocks. outcomes: of all steps so far, in order, by sequence.

    in_flight: the most steps that run at once.
    """

    def __init__(self, backend: CudaBackend, in_flight: int = 2) -> None:
        self._backend = backend
        self._in_flight = in_flight
        self._next_block = 0
        self._num_blocks: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.outcomes: defaultdict[int, Outcomes] = defaultdict(list)

    def start(self, sequence_id: int, tokens: list[int], params: SamplingParams | None = None) -> None:
        self._backend.start(new_start(sequence_id, tokens, len(tokens), params or sampling_params()))
        self.lengths[sequence_id], self._num_blocks[sequence_id] = len(tokens), 0

    def start_random(
        self, sequence_id: int, num_tokens: int, vocab_size: int, params: SamplingParams | None = None
    ) -> None:
        """Starts a sequence of random tokens that depend only on its id."""
        generator = np.random.default_rng(sequence_id)
        self.start(sequence_id, generator.integers(2, vocab_size, num_tokens).tolist(), params)

    def prefill(self, sequence_id: int) -> None:
        """Begins the steps of the prompt, in the largest chunks, of which the last one samples an output token."""
        length, most = self.lengths[sequence_id], self._backend.info.max_step_tokens
        for first in range(0, length, most):
            num_tokens = min(most, length - first)
            self._begin([self.chunk(sequence_id, first, num_tokens, first + num_tokens == length)])
        self.lengths[sequence_id] += 1

    def decode(self, num_steps: int) -> None:
        """Runs decode steps for all sequences to their end."""
        for _ in range(num_steps):
            self._begin([self.chunk(number, length - 1, 1, True) for number, length in self.lengths.items()])
            self.lengths = {number: length + 1 for number, length in self.lengths.items()}
        self.drain()

    def drain(self) -> None:
        """Waits for the steps that were begun."""
        while self._backend.num_steps_in_flight:
            self._finish()

    def end(self) -> None:
        for sequence_id in self.lengths:
            self._backend.end(sequence_id)
        self.lengths.clear()
        self._next_block = 0

    def chunk(self, sequence_id: int, first: int, num_tokens: int, sample: bool) -> Chunk:
        needed = -(-(first + num_tokens) // self._backend.info.block_size) - self._num_blocks[sequence_id]
        blocks = range(self._next_block, self._next_block + max(0, needed))
        self._next_block += len(blocks)
        self._num_blocks[sequence_id] += len(blocks)
        return Chunk(
            sequence_id=sequence_id, first_position=first, num_tokens=num_tokens, new_block_ids=blocks, sample=sample
        )

    def _begin(self, chunks: Sequence[Chunk]) -> None:
        if self._backend.num_steps_in_flight == self._in_flight:
            self._finish()
        self._backend.begin(chunks)

    def _finish(self) -> None:
        for outcome in self._backend.finish().sequences:
            self.outcomes[outcome.sequence_id].append(outcome)


def _decoding(backend: CudaBackend, shape: Shape, batch: int, context: int, num_steps: int) -> Sequences:
    """Returns sequences of `context` tokens after some steps of decode."""
    sequences = Sequences(backend)
    for number in range(batch):
        sequences.start_random(number, context, shape.vocab_size)
        sequences.prefill(number)
    sequences.decode(num_steps)
    return sequences


def measure_decode(
    backend: CudaBackend, shape: Shape, batch: int, context: int, num_steps: int, limits: dict[str, float]
) -> dict[str, Any]:
    """Measures tokens per second, and the least bytes that a step must read as a share of the card's bandwidth."""
    sequences = _decoding(backend, shape, batch, context, WARM_STEPS if num_steps > 1 else 0)
    began = time.perf_counter()
    sequences.decode(num_steps)
    seconds = (time.perf_counter() - began) / num_steps
    sequences.end()
    kv_bytes = batch * (context + num_steps / 2) * backend.info.bytes_per_block / backend.info.block_size
    read_bytes = backend.info.weight_bytes + kv_bytes
    if not shape.tie_word_embeddings:
        # Only one row per token of the embedding matrix is read.
        read_bytes -= ELEMENT_BYTES * shape.head_weights
    return {
        "batch": batch,
        "context": context,
        "step_ms": seconds * 1e3,
        "tokens_per_s": batch / seconds,
        "bandwidth_share": read_bytes / seconds / limits["bytes_per_s"],
    }


def measure_prefill(
    backend: CudaBackend, shape: Shape, num_tokens: int, repeats: int, limits: dict[str, float]
) -> dict[str, Any]:
    """Measures tokens per second of one prompt, and its operations as a share of the card's rate."""
    best = float("inf")
    for number in range(repeats + 1):
        sequences = Sequences(backend)
        sequences.start_random(number, num_tokens, shape.vocab_size)
        began = time.perf_counter()
        sequences.prefill(number)
        sequences.drain()
        if number:
            best = min(best, time.perf_counter() - began)
        sequences.end()
    operations = 2.0 * num_tokens * shape.product_weights + shape.attention_operations(num_tokens)
    return {
        "tokens": num_tokens,
        "ms": best * 1e3,
        "tokens_per_s": num_tokens / best,
        "rate_share": (operations + 2.0 * shape.head_weights) / best / limits["operations_per_s"],
    }


def measure_idle(backend: CudaBackend, shape: Shape, context: int, num_steps: int = 24) -> dict[str, Any]:
    """Measures the share of time in which the device is idle during decode at batch 1, by the device's own clock."""
    from torch.profiler import ProfilerActivity, profile

    sequences = _decoding(backend, shape, 1, context, WARM_STEPS)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        sequences.decode(num_steps)
    sequences.end()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type == torch.profiler.DeviceType.CUDA
    )
    # The first and the last steps fill and drain the two in flight.
    begin, end = spans[0][0], spans[-1][1]
    busy, reached = 0.0, begin
    for first, last in spans:
        busy += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return {"batch": 1, "steps": num_steps, "kernels": len(spans), "idle_share": 1.0 - busy / (end - begin)}

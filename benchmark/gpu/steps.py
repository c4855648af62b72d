"""Measures steps of the cuda backend without a server: decode by batch size, prefill by prompt length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.interface import Chunk, SamplingParams

from gpu.shapes import Shape

ELEMENT_BYTES = 2
WARM_STEPS = 3


class Sequences:
    """Sequences of random tokens on a backend, each with its own blocks."""

    def __init__(self, backend: CudaBackend, vocab_size: int) -> None:
        self._backend = backend
        self._random = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._next_block = 0
        self.lengths: dict[int, int] = {}
        self._num_blocks: dict[int, int] = {}

    def start(self, sequence_id: int, num_tokens: int) -> None:
        tokens = self._random.integers(2, self._vocab_size, num_tokens).tolist()
        self._backend.start(sequence_id, tokens, num_tokens, SamplingParams())
        self.lengths[sequence_id], self._num_blocks[sequence_id] = num_tokens, 0

    def chunk(self, sequence_id: int, first: int, num_tokens: int, sample: bool) -> Chunk:
        needed = -(-(first + num_tokens) // self._backend.info.block_size) - self._num_blocks[sequence_id]
        blocks = range(self._next_block, self._next_block + max(0, needed))
        self._next_block += len(blocks)
        self._num_blocks[sequence_id] += len(blocks)
        return Chunk(sequence_id, first, num_tokens, blocks, sample)

    def prefill(self, sequence_id: int) -> None:
        """Computes the prompt in the largest chunks, with two steps in flight, and samples the first output token."""
        length, most = self.lengths[sequence_id], self._backend.info.max_step_tokens
        for first in range(0, length, most):
            num_tokens = min(most, length - first)
            self._begin([self.chunk(sequence_id, first, num_tokens, first + num_tokens == length)])
        self._drain()
        self.lengths[sequence_id] += 1

    def decode(self, num_steps: int) -> None:
        """Runs decode steps for all sequences, two in flight."""
        for _ in range(num_steps):
            self._begin([self.chunk(number, length - 1, 1, True) for number, length in self.lengths.items()])
            self.lengths = {number: length + 1 for number, length in self.lengths.items()}
        self._drain()

    def end(self) -> None:
        for sequence_id in self.lengths:
            self._backend.end(sequence_id)
        self.lengths.clear()
        self._next_block = 0

    def _begin(self, chunks: Sequence[Chunk]) -> None:
        if self._backend.num_steps_in_flight == 2:
            self._backend.finish()
        self._backend.begin(chunks)

    def _drain(self) -> None:
        while self._backend.num_steps_in_flight:
            self._backend.finish()


def measure_decode(
    backend: CudaBackend, shape: Shape, batch: int, context: int, num_steps: int, limits: dict[str, float]
) -> dict[str, Any]:
    """Measures tokens per second, and the least bytes that a step must read as a share of the card's bandwidth."""
    sequences = Sequences(backend, shape.vocab_size)
    for number in range(batch):
        sequences.start(number, context)
        sequences.prefill(number)
    sequences.decode(WARM_STEPS if num_steps > 1 else 0)
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
        sequences = Sequences(backend, shape.vocab_size)
        sequences.start(number, num_tokens)
        began = time.perf_counter()
        sequences.prefill(number)
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

    sequences = Sequences(backend, shape.vocab_size)
    sequences.start(0, context)
    sequences.prefill(0)
    sequences.decode(WARM_STEPS)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        sequences.decode(num_steps)
    sequences.end()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    # The first and the last steps fill and drain the two in flight.
    begin, end = spans[0][0], spans[-1][1]
    busy, reached = 0.0, begin
    for first, last in spans:
        busy += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return {"batch": 1, "steps": num_steps, "kernels": len(spans), "idle_share": 1.0 - busy / (end - begin)}

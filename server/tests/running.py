"""Sequences on a backend, for tests: one sequence in chunks, its outcomes, and blocks in a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trunkline_server._proto.shard_pb2 import (
    Chunk,
    SampledToken,
    SamplingParams,
    SequenceError,
    SequenceResult,
    StepPlan,
    StepResult,
    Transfers,
)
from trunkline_server.backends.interface import Backend, Store
from trunkline_server.engine import Engine

from tests.plans import new_chunk, new_start

ROOT_KEY = bytes(range(16))
# The sizes of a store's header and records with blocks of 16 tokens, as in store/src/layout.rs.
HEADER_BYTES, RECORD_BYTES = 4096, 512
# Longest wait for an outcome; only a failure reaches it.
DEADLINE_S = 20.0


@dataclass
class Runner:
    """Cuts one sequence into chunks and keeps track of its blocks."""

    sequence_id: int
    blocks: Iterator[int]
    num_known: int
    num_computed: int = 0
    num_blocks: int = 0
    output: list[SampledToken] = field(default_factory=list)
    block_size: int = 16

    def chunk(self, num_tokens: int, **changes: Any) -> Chunk:
        end = self.num_computed + num_tokens
        needed = max(0, -(-(end + len(changes.get("draft_token_ids", ()))) // self.block_size) - self.num_blocks)
        self.num_blocks += needed
        first, self.num_computed = self.num_computed, end
        blocks = [next(self.blocks) for _ in range(needed)]
        return new_chunk(self.sequence_id, first, num_tokens, blocks, end == self.num_known, **changes)

    def take(self, token: SampledToken) -> None:
        self.output.append(token)
        self.num_known += 1


def run_alone(
    backend: Backend, prompt: Sequence[int], cuts: Sequence[int], blocks: Sequence[int], params: SamplingParams, *,
    num_decodes: int,
) -> list[SampledToken]:  # fmt: skip
    """Prefills the prompt in chunks of these sizes, then decodes."""
    assert sum(cuts) == len(prompt)
    backend.start(new_start(1, prompt, len(prompt), params))
    runner = Runner(1, iter(blocks), len(prompt))
    for num_tokens in [*cuts, *[1] * num_decodes]:
        for token in all_sampled(backend.step([runner.chunk(num_tokens)])):
            runner.take(token)
    backend.end(1)
    return runner.output


def assert_same(actual: Sequence[SampledToken], expected: Sequence[SampledToken], atol: float) -> None:
    """Asserts equal tokens, and logprobs within the error of f32 sums in another order."""
    assert [token.token_id for token in actual] == [token.token_id for token in expected]
    np.testing.assert_allclose([t.logprob for t in actual], [t.logprob for t in expected], atol=atol)
    for one, other in zip(actual, expected, strict=True):
        assert [top.token_id for top in one.top_logprobs] == [top.token_id for top in other.top_logprobs]
        np.testing.assert_allclose(
            [top.logprob for top in one.top_logprobs], [top.logprob for top in other.top_logprobs], atol=atol
        )


def token_of(outcome: SequenceResult) -> SampledToken:
    """Returns the token of an outcome, which must have one."""
    assert outcome.HasField("token"), outcome
    return outcome.token


def error_of(outcome: SequenceResult) -> SequenceError:
    """Returns the error of an outcome, which must be a failure."""
    assert outcome.HasField("error"), outcome
    return outcome.error


def all_sampled(result: StepResult) -> list[SampledToken]:
    """Returns the tokens of a step, each outcome of which must have one."""
    return [token_of(outcome) for outcome in result.sequences]


def wait_for_transfers(
    take: Callable[[], Transfers | None], store: Store, num_stores: int = 0, num_restores: int = 0
) -> Transfers:
    """Waits for this many outcomes of each kind, which may come one by one or together. Fails at the deadline."""
    found, deadline = Transfers(), time.monotonic() + DEADLINE_S
    while True:
        # An early one came with the step that requested it and would be waited for in vain.
        if (transfers := take()) is not None:
            found.MergeFrom(transfers)
        if len(found.stores) >= num_stores and len(found.restores) >= num_restores:
            return found
        rest = deadline - time.monotonic()
        assert rest > 0, f"only {found} came"
        store.wait_outcomes(rest)


def keys_on_disk(backend: Backend, slots: Sequence[int]) -> list[bytes]:
    """Returns the keys of the blocks in these slots, each of which must hold one."""
    assert backend.store is not None
    backend.store.sync()
    keys: dict[int, bytes] = {}
    for blocks in backend.store.contents():
        pieces = (blocks.keys[first : first + 16] for first in range(0, len(blocks.keys), 16))
        keys.update(zip(blocks.slots, pieces, strict=True))
    return [keys[slot] for slot in slots]


class Shard:
    """A backend and its engine, as a router uses them."""

    def __init__(self, backend: Any, vocab_size: int) -> None:
        self.backend = backend
        self.engine = Engine(backend, vocab_size=vocab_size)
        self._step_id = 0

    def step(self, **parts: Any) -> list[SampledToken]:
        self._step_id += 1
        return all_sampled(self.engine.step(StepPlan(step_id=self._step_id, **parts)))

    def reset(self) -> None:
        self.engine.reset()
        self._step_id = 0

    def outcomes(self, num_stores: int = 0, num_restores: int = 0) -> Transfers:
        return wait_for_transfers(self.engine.take_transfers, self.backend.store, num_stores, num_restores)

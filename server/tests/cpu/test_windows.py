"""Window parts: memory stays flat, and results are those of the reference and of whole blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cpu.tiny_backend import BLOCK_SIZE, build_tiny, log_softmax
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_block_restore, new_chunk, new_restore, new_start, new_store
from tests.running import ROOT_KEY, all_sampled, keys_on_disk, wait_for_transfers
from trunkline_server._proto.shard_pb2 import SampledToken
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.weights.checkpoint import open_checkpoint

PROMPT = np.random.default_rng(3).integers(0, VOCAB_SIZE, 50).tolist()
# Longer than any window, and than several blocks.
LONG_PROMPT = np.random.default_rng(4).integers(0, VOCAB_SIZE, 120).tolist()
# Random, so that the tokens do not repeat.
SAMPLING = sampling_params(temperature=1.0, seed=5, logprobs=True)
# K and V in f16; 0.00041 was measured.
LOGPROB_BOUND = 0.0006
NUM_LONG = 20_000


def open_tiny(folder: Path, num_tokens: int, window_parts: int | None, **changes: Any) -> CpuBackend:
    options = {"max_batch_total_tokens": num_tokens, "max_step_tokens": BLOCK_SIZE, "kv_cache_dtype": "f16"}
    return build_tiny(open_checkpoint(folder), window_parts=window_parts, **{**options, **changes})


def generate(backend: CpuBackend, num_output: int, window: int) -> Iterator[SampledToken]:
    """Yields samples after `PROMPT` in chunks of a block, then token by token; drops parts that the window has left."""
    backend.start(new_start(1, PROMPT, len(PROMPT), SAMPLING))
    known, first, num_blocks, num_dropped = len(PROMPT), 0, 0, 0
    while known < len(PROMPT) + num_output:
        end = min(first + BLOCK_SIZE, known)
        while (num_dropped + 1) * BLOCK_SIZE <= first + 1 - window:
            backend.drop_window_parts([num_dropped])
            num_dropped += 1
        needed = -(-end // BLOCK_SIZE)
        chunk = new_chunk(1, first, end - first, range(num_blocks, needed), end == known)
        for token in all_sampled(backend.step([chunk])):
            known += 1
            yield token
        first, num_blocks = end, needed
    backend.end(1)


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10


def generate_long(folder: Path, window: int, window_parts: int | None) -> tuple[np.ndarray, list[int]]:
    """Returns ids and log-probabilities [2, NUM_LONG] of tokens, and the resident memory in KiB after every 1,000."""
    backend = open_tiny(folder, len(PROMPT) + NUM_LONG, window_parts)
    # Allocated and touched first, so that the test's own memory does not grow.
    output, resident = np.full((2, NUM_LONG), np.nan), []
    for index, outcome in enumerate(generate(backend, NUM_LONG, window)):
        output[:, index] = outcome.token_id, outcome.logprob
        if index % 1000 == 999:
            resident.append(resident_kib())
    return output, resident


def num_parts(window: int) -> int:
    """Returns the most blocks that a window and the block being written touch."""
    return -(-(window - 1) // BLOCK_SIZE) + 2


def test_twenty_thousand_tokens_take_no_more_memory_than_the_window(tiny_model: TinyModels) -> None:
    model = tiny_model("mistral_window")
    window, num_layers = model.config["sliding_window"], model.config["num_hidden_layers"]
    output, resident = generate_long(model.folder, window, num_parts(window))
    whole, resident_whole = generate_long(model.folder, window, None)
    print("resident KiB every 1,000 tokens, windows kept apart:", *resident, "whole blocks:", *resident_whole)
    assert output.tobytes() == whole.tobytes()
    # f16, two KV heads of 16 elements.
    kv_kib = num_layers * 2 * 2 * 16 * 2 * NUM_LONG >> 10
    assert resident[-1] - resident[0] < kv_kib // 10
    assert resident_whole[-1] - resident_whole[0] > kv_kib // 2

    # Three layers of 37 positions reach back 109 positions, so the last tokens do not depend on those omitted here.
    reach = num_layers * (window - 1) + 1
    token_ids = PROMPT + [int(token_id) for token_id in output[0]]
    begin = len(token_ids) - 600
    # Rotary embeddings depend only on distances, so the reference may begin at position 0.
    reference = ReferenceBackend(open_checkpoint(model.folder), max_batch_total_tokens=1024)
    expected = log_softmax(reference.score(token_ids[begin:-1]))
    differences = [
        abs(output[1, position - len(PROMPT)] - expected[position - 1 - begin][token_ids[position]])
        for position in range(begin + reach, len(token_ids))
    ]
    print(f"mean |Δ logprob| of the last {len(differences)} tokens: {np.mean(differences):.5f}")
    assert np.mean(differences) < LOGPROB_BOUND


@pytest.mark.parametrize("case", ["mistral_window", "gemma2", "gemma3", "qwen2_window", "qwen3_window"])
def test_window_parts_change_no_bit(tiny_model: TinyModels, case: str) -> None:
    model = tiny_model(case)
    window = model.config["sliding_window"]
    apart = open_tiny(model.folder, 256, num_parts(window))
    whole = open_tiny(model.folder, 256, None)
    # If every layer has a window, a block consists only of its window part.
    assert (apart.info.bytes_per_block == 0) == (case == "mistral_window")
    assert apart.info.bytes_per_block < whole.info.bytes_per_block
    assert list(generate(apart, 150, window)) == list(generate(whole, 150, window))


def stored_prompt(backend: CpuBackend) -> list[SampledToken]:
    """Runs `LONG_PROMPT` a block at a time, storing each block as it fills, and then 41 tokens."""
    backend.start(new_start(1, LONG_PROMPT, len(LONG_PROMPT), SAMPLING, ROOT_KEY))
    outcomes: list[SampledToken] = []
    for index, first in enumerate(range(0, len(LONG_PROMPT), BLOCK_SIZE)):
        end = min(first + BLOCK_SIZE, len(LONG_PROMPT))
        is_full = end - first == BLOCK_SIZE
        stores = [new_store(index, index)] if is_full else []
        outcomes += all_sampled(
            backend.step([new_chunk(1, first, end - first, [index], end == len(LONG_PROMPT), stores)])
        )
        if is_full:
            assert backend.store is not None
            (stored,) = wait_for_transfers(backend.store.take_outcomes, backend.store, num_stores=1).stores
            assert (stored.slot, stored.is_stored) == (index, True)
    return outcomes + go_on(backend, len(LONG_PROMPT), -(-len(LONG_PROMPT) // BLOCK_SIZE))


def go_on(backend: CpuBackend, first: int, num_blocks: int, window: int | None = None) -> list[SampledToken]:
    """Generates 40 tokens one by one; drops window parts as the window moves."""
    outcomes: list[SampledToken] = []
    for position in range(first, first + 40):
        if window is not None:
            backend.drop_window_parts(range(max(0, position + 1 - window) // BLOCK_SIZE))
        new = range(num_blocks, position // BLOCK_SIZE + 1)
        num_blocks += len(new)
        outcomes += all_sampled(backend.step([new_chunk(1, position, 1, new, True)]))
    backend.end(1)
    return outcomes


@pytest.mark.parametrize("kv_dtype", ["int8", "int4", "f16"])
@pytest.mark.parametrize("case", ["mistral_window", "gemma2"])
def test_stored_blocks_are_whole_and_restored_without_parts_outside_the_window(
    tiny_model: TinyModels, tmp_path: Path, case: str, kv_dtype: str
) -> None:
    model = tiny_model(case)
    folder, window = model.folder, model.config["sliding_window"]
    options = {"kv_cache_dtype": kv_dtype, "store": StoreOptions(path=tmp_path, max_bytes=1 << 20)}
    num_stored = len(LONG_PROMPT) // BLOCK_SIZE
    backend = open_tiny(folder, 512, 16, **options)
    expected = stored_prompt(backend)
    keys = keys_on_disk(backend, range(num_stored))
    del backend
    first_needed = max(0, num_stored * BLOCK_SIZE + 1 - window) // BLOCK_SIZE
    assert 0 < first_needed < num_stored, "the test has blocks of both kinds"
    # Slots do not reveal whether their writer used window parts.
    for window_parts in (num_parts(window), None):
        backend = open_tiny(folder, 512, window_parts, **options)
        blocks = [new_block_restore(slot, slot, key, slot < first_needed) for slot, key in enumerate(keys)]
        assert backend.store is not None
        backend.store.restore(new_restore(1, blocks))
        (restored,) = wait_for_transfers(backend.store.take_outcomes, backend.store, num_restores=1).restores
        assert restored.num_blocks == num_stored
        backend.start(new_start(1, LONG_PROMPT, len(LONG_PROMPT), SAMPLING, ROOT_KEY))
        first = num_stored * BLOCK_SIZE
        outcomes = all_sampled(
            backend.step([new_chunk(1, first, len(LONG_PROMPT) - first, range(num_stored + 1), True)])
        )
        outcomes += go_on(backend, len(LONG_PROMPT), num_stored + 1, window)
        assert outcomes == expected
        del backend

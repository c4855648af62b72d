"""The cuda backend with tiers below the device: restored blocks equal the computed ones bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import running
from tests.cuda.lazy_device import LazyDevice
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_block_restore, new_chunk, new_copy, new_restore, new_start, new_store
from tests.running import ROOT_KEY, keys_on_disk
from trunkline_server._proto.shard_pb2 import BlockStore, SampledToken, StepPlan
from trunkline_server.backends import registry
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build
from trunkline_server.backends.cuda.device import CudaDevice, Device
from trunkline_server.backends.cuda.tier_build import TierOptions
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.errors import DoesNotFit, InvalidArgument, PlanError
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

BLOCK_SIZE = 16
NUM_BLOCKS = 12
NUM_STORED = 2
PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, NUM_STORED * BLOCK_SIZE + 3).tolist()
SAMPLING = sampling_params(temperature=0.8, seed=3, logprobs=True, num_top_logprobs=5)
STORES = [new_store(index, 9 - index) for index in range(NUM_STORED)]
BLOCK_IDS = [9, 4, 11]
RESTORED_IDS = [2, 5]
HOST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def checkpoint(tiny_model: TinyModels) -> Checkpoint:
    return open_checkpoint(tiny_model("qwen2_shallow").folder)


def open_backend(
    checkpoint: Checkpoint,
    device: str,
    host: int | None = None,
    folder: Path | None = None,
    *,
    disk_bytes: int = 1 << 20,
) -> CudaBackend:
    """On the CPU, streams do nothing until something waits for them."""
    disk = None if folder is None else StoreOptions(path=folder, max_bytes=disk_bytes)
    made: Device = CudaDevice() if device == "cuda" else LazyDevice(None)
    # The interpreter takes long to round to bf16.
    dtype = None if device == "cuda" else torch.float32
    return build(
        checkpoint, max_batch_total_tokens=NUM_BLOCKS * BLOCK_SIZE, max_step_tokens=64, max_step_sequences=8,
        device=made, dtype=dtype, block_size=BLOCK_SIZE, tiers=TierOptions(host_bytes=host, disk=disk),
    )  # fmt: skip


class Shard(running.Shard):
    def __init__(self, backend: CudaBackend) -> None:
        super().__init__(backend, VOCAB_SIZE)
        self._restore_id = 0

    def prefill(self, block_ids: Sequence[int], first: int = 0, stores: Sequence[BlockStore] = ()) -> SampledToken:
        """Computes the prompt from position `first` on, with a sequence that ends before the next one."""
        start = new_start(1, PROMPT, len(PROMPT), SAMPLING, ROOT_KEY)
        chunk = new_chunk(1, first, len(PROMPT) - first, block_ids, True, stores)
        (sampled,) = self.step(starts=[start], chunks=[chunk])
        self.step(ends=[1])
        return sampled

    def store_prompt(self) -> SampledToken:
        """Stores the blocks of the prompt; returns the next token, sampled while they are on the device."""
        self.prefill(BLOCK_IDS, stores=STORES)
        stores = self.outcomes(num_stores=NUM_STORED).stores
        assert [(one.slot, one.is_stored) for one in stores] == [(store.slot, True) for store in STORES]
        return self.prefill(BLOCK_IDS, first=NUM_STORED * BLOCK_SIZE)

    def forget(self) -> None:
        """Overwrites the blocks of the prompt, and those to which they are restored, with a step."""
        block_ids = [*BLOCK_IDS[:NUM_STORED], *RESTORED_IDS]
        tokens = [token % 7 for token in range(len(block_ids) * BLOCK_SIZE)]
        start = new_start(2, tokens, len(tokens), SAMPLING, ROOT_KEY)
        self.step(starts=[start], chunks=[new_chunk(2, 0, len(tokens), block_ids, False)])
        self.step(ends=[2])

    def clobber(self) -> None:
        """Overwrites the same blocks without computing, once nothing is in flight."""
        self.backend.device.wait()
        with torch.inference_mode():
            self.backend.pool.pieces.fill_(7)

    def restore(self, keys: Sequence[bytes] | None = None) -> int:
        """Restores the blocks; returns how many were restored."""
        self._restore_id += 1
        keys = keys or [bytes(16)] * NUM_STORED
        blocks = [
            new_block_restore(store.slot, block_id, key)
            for store, block_id, key in zip(STORES, RESTORED_IDS, keys, strict=True)
        ]
        self.step(restores=[new_restore(self._restore_id, blocks)])
        (outcome,) = self.outcomes(num_restores=1).restores
        assert outcome.restore_id == self._restore_id
        return outcome.num_blocks

    def hit(self, count: int = NUM_STORED) -> SampledToken:
        """Computes the prompt behind `count` restored blocks."""
        fresh = [block_id for block_id in range(NUM_BLOCKS) if block_id not in RESTORED_IDS]
        return self.prefill([*RESTORED_IDS[:count], *fresh[: NUM_STORED + 1 - count]], first=count * BLOCK_SIZE)


def close(shard: Shard) -> None:
    """Closes the store, so that its folder can be used again."""
    shard.reset()
    del shard.engine, shard.backend
    gc.collect()


def test_overwritten_blocks_are_restored_from_the_host(checkpoint: Checkpoint, device: str) -> None:
    backend = open_backend(checkpoint, device, HOST_BYTES)
    assert backend.info.num_store_slots == HOST_BYTES // backend.info.bytes_per_block
    assert backend.info.store_folder == ""
    shard = Shard(backend)
    expected = shard.store_prompt()
    shard.clobber()
    assert shard.restore() == NUM_STORED
    assert shard.hit() == expected
    # The next step overwrites blocks before their copies out have begun.
    shard.step(discards=[store.slot for store in STORES])
    shard.prefill(BLOCK_IDS, stores=STORES)
    shard.forget()
    shard.outcomes(num_stores=NUM_STORED)
    assert shard.restore() == NUM_STORED
    assert shard.hit() == expected
    shard.step(discards=[STORES[1].slot])
    assert shard.restore() == 1
    # Blocks do not outlive a stream, because the next router does not know them.
    shard.reset()
    assert backend.store is not None
    assert list(backend.store.contents()) == []
    assert shard.restore() == 0


def test_a_restored_block_can_be_copied_and_scored(checkpoint: Checkpoint, device: str) -> None:
    shard = Shard(open_backend(checkpoint, device, HOST_BYTES))
    expected = shard.store_prompt()
    shard.clobber()
    assert shard.restore() == NUM_STORED
    shard.step(copies=[new_copy(RESTORED_IDS[1], 0, BLOCK_SIZE)])
    assert shard.prefill([RESTORED_IDS[0], 0, 1], first=NUM_STORED * BLOCK_SIZE) == expected
    # Scoring overwrites the first blocks, even while they are being restored.
    alone = shard.backend.score(PROMPT[:17])
    shard.step(restores=[new_restore(99, [new_block_restore(STORES[0].slot, 0, bytes(16))])])
    shard.outcomes(num_restores=1)
    np.testing.assert_array_equal(shard.backend.score(PROMPT[:17]), alone)


def test_a_history_continues_with_the_same_bits_after_a_restart(
    checkpoint: Checkpoint, tmp_path: Path, device: str
) -> None:
    shard = Shard(open_backend(checkpoint, device, folder=tmp_path))
    expected = shard.store_prompt()
    keys = keys_on_disk(shard.backend, [store.slot for store in STORES])
    close(shard)
    shard = Shard(open_backend(checkpoint, device, folder=tmp_path))
    assert shard.restore(keys) == NUM_STORED
    assert shard.hit() == expected
    # A restore checks its keys.
    assert shard.restore([keys[0], keys[0]]) == 1


def test_invalid_stores_are_refused_before_anything_is_done(checkpoint: Checkpoint, device: str) -> None:
    shard = Shard(open_backend(checkpoint, device, HOST_BYTES))

    def prefill(stores: Sequence[BlockStore], root_key: bytes = ROOT_KEY) -> None:
        start = new_start(1, PROMPT, len(PROMPT), SAMPLING, root_key)
        shard.step(starts=[start], chunks=[new_chunk(1, 0, len(PROMPT), BLOCK_IDS, True, stores)])

    for stores, root_key, problem in (
        (STORES[:1], b"", "sequence 1 was started without a root key"),
        ([new_store(NUM_STORED, 0)], ROOT_KEY, f"block {NUM_STORED} of sequence 1 is not full"),
        ([new_store(0, 3), new_store(1, 3)], ROOT_KEY, "slot 3 is stored twice"),
    ):
        with pytest.raises(PlanError, match=problem):
            prefill(stores, root_key)
        shard.reset()
    twice = [new_block_restore(slot, 3, bytes(16)) for slot in (1, 2)]
    with pytest.raises(PlanError, match="restore 7: a block is restored twice"):
        shard.step(restores=[new_restore(7, twice)])


def test_a_chunk_that_fails_stores_nothing(checkpoint: Checkpoint, device: str) -> None:
    shard = Shard(open_backend(checkpoint, device, HOST_BYTES))
    start = new_start(1, PROMPT, len(PROMPT), SAMPLING, ROOT_KEY)
    bad = new_chunk(1, 0, len(PROMPT), [NUM_BLOCKS, *BLOCK_IDS[1:]], True, STORES)
    shard.engine.step(StepPlan(step_id=1, starts=[start], chunks=[bad]))
    stores = shard.outcomes(num_stores=NUM_STORED).stores
    assert [one.is_stored for one in stores] == [False] * NUM_STORED


def test_sizes_that_do_not_fit_are_one_line_errors(checkpoint: Checkpoint, device: str) -> None:
    with pytest.raises(InvalidArgument, match="the cpu backend already keeps its blocks in host memory"):
        registry.build("cpu", checkpoint, registry.BackendOptions(kv_host_bytes=1 << 30))
    with pytest.raises(DoesNotFit, match=r"takes 1073741824 MiB of pinned memory, but the host has \d+ MiB available"):
        open_backend(checkpoint, device, 1 << 50)


def test_blocks_of_other_sizes_have_another_folder(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The folder's name covers the layout of blocks, not only the weights."""
    names = set()
    for changes in ({}, {"block_size": 32}, {"kv_cache_dtype": "int8"}):
        # The disk has room for one block, which is not a power of two bytes, but memory is pinned in such sizes.
        backend = build(
            checkpoint, max_batch_total_tokens=512, max_step_tokens=32, max_step_sequences=4, device=LazyDevice(None),
            tiers=TierOptions(disk=StoreOptions(path=tmp_path, max_bytes=4096)),
            **{"block_size": BLOCK_SIZE, "dtype": torch.float32, **changes},
        )  # fmt: skip
        names.add(backend.info.store_folder)
        assert backend.info.num_store_slots == 1
    assert backend.info.bytes_per_block & (backend.info.bytes_per_block - 1)
    assert len(names) == 3

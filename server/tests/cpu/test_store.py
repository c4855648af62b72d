"""KV blocks on disk with the real kernels: a restarted shard continues with the same bits."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import running
from tests.cpu.tiny_backend import BLOCK_SIZE, build_tiny
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_block_restore, new_chunk, new_restore, new_start, new_store
from tests.running import HEADER_BYTES, RECORD_BYTES, ROOT_KEY, keys_on_disk
from trunkline_server._proto.shard_pb2 import BlockStore, SampledToken
from trunkline_server.backends import registry, store_files
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.errors import InvalidArgument, PlanError
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

NUM_STORED = 5
PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, NUM_STORED * BLOCK_SIZE + 7).tolist()
SAMPLING = sampling_params(temperature=0.8, seed=3, logprobs=True, num_top_logprobs=5)


@pytest.fixture
def checkpoint(tiny_model: TinyModels) -> Checkpoint:
    return open_checkpoint(tiny_model("llama3").folder)


def open_backend(checkpoint: Checkpoint, folder: Path | None, **changes: Any) -> CpuBackend:
    store = None if folder is None else StoreOptions(path=folder, max_bytes=1 << 20)
    return build_tiny(checkpoint, **{"store": store, "max_step_tokens": 256, **changes})


class Shard(running.Shard):
    def __init__(self, backend: CpuBackend) -> None:
        super().__init__(backend, VOCAB_SIZE)

    def prefill(self, block_ids: Sequence[int], first: int = 0, stores: Sequence[BlockStore] = ()) -> SampledToken:
        """Computes the prompt from position `first` on."""
        start = new_start(1, PROMPT, len(PROMPT), SAMPLING, ROOT_KEY)
        chunk = new_chunk(1, first, len(PROMPT) - first, block_ids, True, stores)
        return self.step(starts=[start], chunks=[chunk])[0]

    def go_on(self, count: int) -> list[SampledToken]:
        first = len(PROMPT)
        return [self.step(chunks=[new_chunk(1, first + i, 1, (), True)])[0] for i in range(count)]


BLOCK_IDS = [9, 4, 31, 2, 17, 8, 40]
STORES = [new_store(index, 20 - index) for index in range(NUM_STORED)]
SLOTS = [store.slot for store in STORES]


def store_prompt(checkpoint: Checkpoint, folder: Path) -> tuple[list[SampledToken], list[bytes], Path]:
    """Returns the continuation, the keys of the stored blocks, and their folder. The shard is closed afterwards."""
    shard = Shard(open_backend(checkpoint, folder))
    sampled = [shard.prefill(BLOCK_IDS, stores=STORES)]
    stored = [(outcome.slot, outcome.is_stored) for outcome in shard.outcomes(num_stores=len(STORES)).stores]
    assert stored == [(store.slot, True) for store in STORES]
    sampled += shard.go_on(8)
    return sampled, keys_on_disk(shard.backend, SLOTS), Path(shard.backend.info.store_folder)


def restore(shard: Shard, keys: Sequence[bytes]) -> int:
    """Restores the blocks to 50, 51, ...; returns how many were restored."""
    blocks = [
        new_block_restore(store.slot, 50 + i, key) for i, (store, key) in enumerate(zip(STORES, keys, strict=True))
    ]
    shard.step(restores=[new_restore(1, blocks)])
    (outcome,) = shard.outcomes(num_restores=1).restores
    assert outcome.restore_id == 1
    return outcome.num_blocks


@pytest.mark.parametrize(
    ("case", "kv_dtype"), [("llama3", "int8"), ("llama3", "int4"), ("llama3", "f16"), ("deepseek_v2", "auto")]
)
def test_a_history_continues_with_the_same_bits_after_a_restart(
    tiny_model: TinyModels, tmp_path: Path, case: str, kv_dtype: str
) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    folder = tmp_path / "kv"
    shard = Shard(open_backend(checkpoint, folder, kv_cache_dtype=kv_dtype))
    expected = [shard.prefill(BLOCK_IDS, stores=STORES), *shard.go_on(8)]
    shard.engine.reset()
    keys = keys_on_disk(shard.backend, SLOTS)
    del shard

    shard = Shard(open_backend(checkpoint, folder, kv_cache_dtype=kv_dtype))
    assert restore(shard, keys) == NUM_STORED
    hit = [50 + i for i in range(NUM_STORED)]
    again = [shard.prefill([*hit, 0, 1], first=NUM_STORED * BLOCK_SIZE), *shard.go_on(8)]
    assert again == expected


@pytest.mark.parametrize("damaged", range(NUM_STORED))
def test_a_restore_stops_before_a_damaged_block(checkpoint: Checkpoint, tmp_path: Path, damaged: int) -> None:
    expected, keys, path = store_prompt(checkpoint, tmp_path)
    backend = open_backend(checkpoint, tmp_path)
    slot_bytes = -(-backend.info.bytes_per_block // 4096) * 4096
    with (path / "blocks").open("r+b") as file:
        file.seek(STORES[damaged].slot * slot_bytes + 100)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 8]))
    shard = Shard(backend)
    assert restore(shard, keys) == damaged
    hit = [50 + i for i in range(damaged)]
    fresh = list(range(len(BLOCK_IDS) - damaged))
    assert shard.prefill([*hit, *fresh], first=damaged * BLOCK_SIZE) == expected[0]


def test_a_store_lists_its_blocks_as_they_are_now(checkpoint: Checkpoint, tmp_path: Path) -> None:
    _, keys, _ = store_prompt(checkpoint, tmp_path)
    shard = Shard(open_backend(checkpoint, tmp_path))
    assert shard.backend.store is not None
    (blocks,) = shard.backend.store.contents()
    assert list(blocks.slots) == sorted(SLOTS)
    # Slots descend while depths ascend, and the parent of each block is the block before it.
    assert (blocks.keys, list(blocks.depths)) == (b"".join(reversed(keys)), list(reversed(range(NUM_STORED))))
    assert blocks.parent_keys == b"".join([*reversed(keys[:-1]), ROOT_KEY])
    assert sorted(blocks.sequences, reverse=True) == list(blocks.sequences)
    shard.step(discards=[SLOTS[1]])
    (blocks,) = shard.backend.store.contents()
    assert list(blocks.slots) == sorted({*SLOTS} - {SLOTS[1]})


def test_a_restore_checks_keys(checkpoint: Checkpoint, tmp_path: Path) -> None:
    _, keys, _ = store_prompt(checkpoint, tmp_path)
    shard = Shard(open_backend(checkpoint, tmp_path))
    assert restore(shard, [keys[0], *reversed(keys[1:])]) == 1
    shard.step(discards=[STORES[0].slot])
    assert restore(shard, keys) == 0


def test_another_model_starts_with_an_empty_store(tiny_model: TinyModels, tmp_path: Path) -> None:
    _, keys, path = store_prompt(open_checkpoint(tiny_model("llama3").folder), tmp_path)
    other = open_backend(open_checkpoint(tiny_model("qwen3").folder), tmp_path)
    # Another fingerprint leads to another folder.
    assert Path(other.info.store_folder) != path
    assert restore(Shard(other), keys) == 0


def test_contract_errors_that_only_the_kernels_detect(checkpoint: Checkpoint, tmp_path: Path) -> None:
    shard = Shard(open_backend(checkpoint, tmp_path))
    start = new_start(1, PROMPT, len(PROMPT), SAMPLING)
    chunk = new_chunk(1, 0, len(PROMPT), BLOCK_IDS, True, STORES[:1])
    with pytest.raises(PlanError, match="sequence 1 was started without a root key"):
        shard.step(starts=[start], chunks=[chunk])


def test_two_shards_do_not_share_a_folder(checkpoint: Checkpoint, tmp_path: Path) -> None:
    first = open_backend(checkpoint, tmp_path)
    with pytest.raises(InvalidArgument, match=f"`{first.info.store_folder}` is used by another process"):
        open_backend(checkpoint, tmp_path)


def test_a_shard_takes_the_store_over(
    checkpoint: Checkpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Shard(open_backend(checkpoint, tmp_path))
    first = old.prefill(BLOCK_IDS, stores=STORES)
    old.outcomes(num_stores=len(STORES))
    keys = keys_on_disk(old.backend, SLOTS)
    awaiting = StoreOptions(path=tmp_path, max_bytes=1 << 20, awaits=True)

    monkeypatch.setattr(store_files, "HAND_OVER_S", 0.0)
    with pytest.raises(InvalidArgument, match="is used by another process"):
        open_backend(checkpoint, None, store=awaiting)
    assert capfd.readouterr().out == '"awaits_store"\n'
    monkeypatch.undo()

    assert old.backend.store is not None
    give_up = old.backend.store.give_up
    # What the launcher does when it reads the report.
    monkeypatch.setattr(store_files, "print", lambda *_, **__: give_up(), raising=False)
    new = Shard(open_backend(checkpoint, None, store=awaiting))
    assert restore(new, keys) == NUM_STORED
    hit = [50 + i for i in range(NUM_STORED)]
    assert new.prefill([*hit, 0, 1], first=NUM_STORED * BLOCK_SIZE) == first

    # The old shard goes on without its store.
    assert restore(old, keys) == 0
    old.step(ends=[1])
    assert old.prefill(BLOCK_IDS, stores=[new_store(0, 3)]) == first
    assert [outcome.is_stored for outcome in old.outcomes(num_stores=1).stores] == [False]


def test_a_shard_takes_its_store_back(checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = Shard(open_backend(checkpoint, tmp_path))
    first = old.prefill(BLOCK_IDS, stores=STORES)
    old.outcomes(num_stores=len(STORES))
    keys = keys_on_disk(old.backend, SLOTS)
    assert old.backend.store is not None
    old.backend.store.give_up()
    new = open_backend(checkpoint, tmp_path)

    old.backend.store.take_back()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("KV blocks are not kept on disk until the shard is restarted: the store in `")
    assert restore(old, keys) == 0
    old.step(ends=[1])
    del new
    gc.collect()
    old.backend.store.take_back()
    assert restore(old, keys) == NUM_STORED
    hit = [50 + i for i in range(NUM_STORED)]
    assert old.prefill([*hit, 0, 1], first=NUM_STORED * BLOCK_SIZE) == first
    old.step(ends=[1])
    assert old.prefill(BLOCK_IDS, stores=[new_store(0, 3)]) == first
    assert [outcome.is_stored for outcome in old.outcomes(num_stores=1).stores] == [True]


def test_a_shard_goes_without_an_optional_store_that_another_one_has(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_backend(checkpoint, tmp_path)
    second = open_backend(checkpoint, None, store=StoreOptions(path=tmp_path, max_bytes=1 << 20, is_optional=True))
    assert (second.store, second.info.num_store_slots) == (None, 0)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    expected = f"KV blocks are not kept on disk: the store in `{first.info.store_folder}` is used by another process"
    assert record.getMessage().startswith(expected)
    assert record.getMessage().count("hint:") == 1


def test_each_lane_has_a_store_of_its_own(checkpoint: Checkpoint, tmp_path: Path) -> None:
    _, keys, path = store_prompt(checkpoint, tmp_path)
    other = open_backend(checkpoint, None, store=StoreOptions(path=tmp_path, max_bytes=1 << 20, lane=2))
    fingerprint = other.info.numeric_fingerprint
    # Lane 0 finds the folder that stores had before there were lanes.
    assert path == tmp_path / fingerprint
    assert Path(other.info.store_folder) == tmp_path / f"{fingerprint}.2"
    first = open_backend(checkpoint, tmp_path)
    assert keys_on_disk(first, SLOTS) == keys
    assert other.store is not None
    assert [list(blocks.slots) for blocks in other.store.contents()] == [[]]


def test_lanes_share_the_size_of_the_store(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def num_slots(num_lanes: int) -> int:
        store = StoreOptions(path=tmp_path, max_bytes=1 << 20, num_lanes=num_lanes, lane=num_lanes - 1)
        return open_backend(checkpoint, None, store=store).info.num_store_slots

    assert num_slots(4) == num_slots(1) // 4 > 0
    with pytest.raises(InvalidArgument, match="`--kv-disk-size` is 1048576 bytes for 999 replicas, but one block"):
        num_slots(999)


def test_an_unusable_folder_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(InvalidArgument, match=f"cannot use `--kv-disk-path`: cannot make the folder `{path}") as caught:
        open_backend(checkpoint, path)
    assert "`--kv-disk-optional`" in str(caught.value)


def test_an_unusable_folder_is_a_warning_if_the_disk_is_optional(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    options = StoreOptions(path=path, max_bytes=1 << 20, is_optional=True)
    backend = open_backend(checkpoint, None, store=options)
    assert (backend.store, backend.info.num_store_slots, backend.info.store_folder) == (None, 0, "")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    message = record.getMessage()
    assert message.startswith(f"KV blocks are not kept on disk: cannot make the folder `{path}")
    assert "hint: set `--kv-disk-path` to a writable folder" in message


def test_a_size_below_one_block_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="`--kv-disk-size` is 100 bytes, but one block of this model takes"):
        open_backend(checkpoint, None, store=StoreOptions(path=tmp_path, max_bytes=100))


def test_blocks_of_another_format_make_room(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shard = Shard(open_backend(checkpoint, tmp_path))
    shard.prefill(BLOCK_IDS, stores=STORES)
    shard.outcomes(num_stores=NUM_STORED)
    assert shard.backend.store is not None
    shard.backend.store.sync()
    shard.backend.store.give_up()
    old = Path(shard.backend.info.store_folder)
    size = old.joinpath("blocks").stat().st_blocks * 512
    for name in ("lock", "records"):
        os.utime(old / name, (0, 0))

    # Blocks of this format are up to twice as large.
    room = StoreOptions(path=tmp_path, max_bytes=size * 2)
    new = open_backend(checkpoint, None, store=room, kv_cache_dtype="f16")
    assert "made room" not in caplog.text, "there is room yet"
    shard = Shard(new)
    stores = [new_store(index, index) for index in range(NUM_STORED)]
    shard.prefill(BLOCK_IDS, stores=stores)
    assert all(outcome.is_stored for outcome in shard.outcomes(num_stores=NUM_STORED).stores)
    (record,) = [record for record in caplog.records if "made room" in record.getMessage()]
    assert record.__dict__["fields"]["folder"] == old
    assert [path.name for path in old.iterdir()] == ["lock"]
    assert len(keys_on_disk(new, range(NUM_STORED))) == NUM_STORED


def test_the_reference_backend_has_no_store(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the reference backend does not support it"):
        registry.build(
            "reference", checkpoint, registry.BackendOptions(kv_disk=StoreOptions(path=tmp_path, max_bytes=1 << 20))
        )


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Makes writes beyond this offset of any file fail, as on a full disk."""
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)


def test_a_full_disk_costs_no_answer(checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = open_backend(checkpoint, tmp_path)
    slot_bytes = -(-backend.info.bytes_per_block // 4096) * 4096
    expected = Shard(open_backend(checkpoint, None)).prefill(BLOCK_IDS)
    shard = Shard(backend)
    stores = [new_store(0, 0), new_store(1, 20), new_store(2, 21)]
    # The records of all slots and a few blocks fit; slots 20 and 21 do not.
    assert HEADER_BYTES + backend.info.num_store_slots * RECORD_BYTES < 20 * slot_bytes
    with largest_file(20 * slot_bytes):
        assert shard.prefill(BLOCK_IDS, stores=stores) == expected
        stored = [(outcome.slot, outcome.is_stored) for outcome in shard.outcomes(num_stores=3).stores]
    assert stored == [(0, True), (20, False), (21, False)]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    # The last refused block before the first outcomes were taken.
    assert re.match(r"a block was not stored or restored: slot 2[01] is not written", warnings[0])

"""Sizes of the pool on simulated systems, independent of the machine that runs the tests."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from trunkline_server.backends.cpu.memory import (
    DEFAULT_POOL_TOKENS,
    MIN_POOL_TOKENS,
    MemoryNeed,
    plan_pool,
)
from trunkline_server.backends.host_memory import PROCESS_BYTES, available_memory, process_memory
from trunkline_server.errors import DoesNotFit

MIB = 2**20
NEED = MemoryNeed(weight_bytes=100 * MIB, scratch_bytes=10 * MIB, kv_bytes_per_token=32 * 1024)
BLOCK_SIZE = 32


def pool_tokens(
    available_bytes: int, wanted_tokens: int | None = None, num_shares: int = 1, model_memory: int | None = None
) -> int:
    blocks = plan_pool(
        NEED,
        available_bytes=available_bytes,
        block_size=BLOCK_SIZE,
        wanted_tokens=wanted_tokens,
        num_shares=num_shares,
        model_memory=model_memory,
    )
    return blocks * BLOCK_SIZE


def test_a_large_machine_gets_the_default_number_of_tokens() -> None:
    assert pool_tokens(1 << 40) == DEFAULT_POOL_TOKENS


def test_a_middling_machine_gives_a_quarter_of_its_memory() -> None:
    assert pool_tokens(1024 * MIB) == 256 * MIB // NEED.kv_bytes_per_token


def test_a_small_machine_gives_the_memory_that_weights_leave() -> None:
    assert pool_tokens(140 * MIB) == 30 * MIB // NEED.kv_bytes_per_token


def test_the_pool_takes_what_the_memory_of_the_model_leaves() -> None:
    fixed = NEED.weight_bytes + NEED.scratch_bytes
    # More than the default size of 4 GiB.
    whole = 6 * 1024 * MIB
    assert pool_tokens(1 << 40, model_memory=fixed + PROCESS_BYTES + whole) == whole // NEED.kv_bytes_per_token
    own = fixed + 2 * PROCESS_BYTES + whole
    assert pool_tokens(1 << 40, num_shares=2, model_memory=own) == whole // NEED.kv_bytes_per_token // 2
    assert pool_tokens(1 << 40, 64, model_memory=own) == 64
    assert pool_tokens(140 * MIB, model_memory=own) == 30 * MIB // NEED.kv_bytes_per_token
    with pytest.raises(DoesNotFit, match="raise `--model-memory`"):
        pool_tokens(1 << 40, model_memory=fixed)
    with pytest.raises(DoesNotFit, match="lower `--max-batch-total-tokens` or raise `--model-memory`"):
        pool_tokens(1 << 40, 1 << 20, model_memory=own)


def test_shards_that_share_the_memory_share_the_size_that_one_alone_would_take() -> None:
    assert pool_tokens(1 << 40, num_shares=4) == DEFAULT_POOL_TOKENS // 4
    assert pool_tokens(1024 * MIB, num_shares=2) == 128 * MIB // NEED.kv_bytes_per_token
    assert pool_tokens(1024 * MIB, 64, num_shares=2) == 64, "it is this shard's part already"


def test_the_smallest_pool_is_accepted_and_one_byte_less_refused() -> None:
    smallest = 110 * MIB + MIN_POOL_TOKENS * NEED.kv_bytes_per_token
    assert pool_tokens(smallest) == MIN_POOL_TOKENS
    with pytest.raises(DoesNotFit) as refusal:
        pool_tokens(smallest - 1)
    assert str(refusal.value) == (
        "weights and activations take 110 MiB and the smallest KV pool (512 tokens) 16 MiB, but 126 MiB of memory are "
        "available; hint: choose a smaller or more quantised model (`--quantize int4` quantises one that is not), or "
        "lower `--max-batch-total-tokens`"
    )


def test_a_requested_size_is_met_in_whole_blocks_or_refused() -> None:
    assert pool_tokens(1024 * MIB, 1) == BLOCK_SIZE
    assert pool_tokens(1024 * MIB, 33) == 2 * BLOCK_SIZE
    exact = 110 * MIB + 2 * BLOCK_SIZE * NEED.kv_bytes_per_token
    assert pool_tokens(exact, 64) == 64
    with pytest.raises(DoesNotFit, match=r"65 tokens takes 3 MiB, but 112 MiB .*lower `--max-batch-total-tokens`"):
        pool_tokens(exact, 65)


class System:
    """A root folder with only the files that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nBuffers: 1 kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_without_cgroups_only_the_system_limit_counts(system: System) -> None:
    assert available_memory(system.root) == 8000 * 1024


def test_cgroup_v2_limits_count_at_every_level_and_file_pages_are_free(system: System) -> None:
    system.write("proc/self/cgroup", "0::/pods/one\n")
    system.write("sys/fs/cgroup/pods/one/memory.max", "max\n")
    system.write("sys/fs/cgroup/pods/one/memory.current", "1000\n")
    assert available_memory(system.root) == 8000 * 1024
    system.write("sys/fs/cgroup/pods/memory.max", "5000\n")
    system.write("sys/fs/cgroup/pods/memory.current", "3000\n")
    system.write("sys/fs/cgroup/pods/memory.stat", "anon 1500\ninactive_file 700\nactive_file 300\n")
    assert available_memory(system.root) == 5000 - (3000 - 1000)
    system.write("sys/fs/cgroup/pods/one/memory.max", "900\n")
    assert available_memory(system.root) == 0


def test_cgroup_v1_limits_count(system: System) -> None:
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    system.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n")
    system.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2096\n")
    system.write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 96\n")
    assert available_memory(system.root) == 4096 - 2000


def test_a_process_takes_what_is_resident_beside_its_weights(tmp_path: Path) -> None:
    system = System(tmp_path)
    pages = 300 * MIB // resource.getpagesize()
    system.write("proc/self/statm", f"999999 {pages} 5 1 0 7 0\n")
    assert process_memory(100 * MIB, system.root) == 200 * MIB
    assert process_memory(299 * MIB, system.root) == PROCESS_BYTES, "mapped weights are not resident yet"

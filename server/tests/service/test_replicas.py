"""The parts of a machine that the lanes of a server have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from tests.fakes.settings import write_settings
from tests.service.test_process import Start, start
from trunkline_server.cores import part_of, physical_cores
from trunkline_server.errors import InvalidArgument
from trunkline_server.serve import backend_options
from trunkline_server.settings import read_settings

__all__ = ["start"]


def write_cpu(root: Path, cpu: int, siblings: str, node: int) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/thread_siblings_list").write_text(f"{siblings}\n")
    (folder / f"node{node}").mkdir()


def test_a_core_has_all_its_threads_and_those_of_a_node_are_together(tmp_path: Path) -> None:
    # Cores 0 and 2 are on the second node.
    for cpu in range(8):
        core = cpu % 4
        write_cpu(tmp_path, cpu, f"{core},{core + 4}", node=(core + 1) % 2)
    assert physical_cores(range(8), tmp_path) == [[1, 5], [3, 7], [0, 4], [2, 6]]
    assert physical_cores({5, 0, 2}, tmp_path) == [[5], [0], [2]], "as far as this process may use them"
    assert physical_cores({9, 8}, tmp_path) == [[8], [9]], "without files, each is a core"


def test_lanes_have_equal_parts_of_the_cores_and_of_the_quota() -> None:
    cores = [[cpu, cpu + 7] for cpu in range(7)]
    assert [part_of(cores, 14, lane, 3) for lane in range(3)] == [
        ([0, 7, 1, 8], 2),
        ([2, 9, 3, 10], 2),
        ([4, 11, 5, 12], 2),
    ]
    assert part_of(cores, 5, 1, 2) == ([3, 10, 4, 11, 5, 12], 2), "the quota allows five threads"
    assert part_of([[cpu] for cpu in range(256)], 256, 1, 2) == (list(range(128, 256)), 64)
    for num_lanes, max_threads, usable in [(8, 14, 7), (3, 2, 2)]:
        error = f"`--replicas` is {num_lanes}, but the number of cores that this server may use is {usable}; hint: "
        with pytest.raises(InvalidArgument, match=error):
            part_of(cores, max_threads, 0, num_lanes)


def test_lanes_divide_memory_except_on_a_gpu(tmp_path: Path) -> None:
    sizes = {"max_batch_total_tokens": 1000, "kv_disk_path": "/kv", "kv_disk_size": 3 << 24, "kv_host_size": 1 << 30}
    options = argparse.Namespace(lane=1, await_store=False, lifeline=False)
    for backend, num_shares, num_tokens in [("cpu", 3, 333), ("reference", 3, 333), ("cuda", 1, 1000)]:
        settings = write_settings(tmp_path, tmp_path / "model.gguf", backend=backend, replicas=3, threads=2, **sizes)
        made = backend_options(read_settings(settings), options)
        assert (made.num_shares, made.max_batch_total_tokens, made.threads) == (num_shares, num_tokens, 2)
        assert made.kv_host_bytes == (1 << 30) // 3
        assert made.kv_disk is not None
        assert (made.kv_disk.max_bytes, made.kv_disk.num_lanes, made.kv_disk.lane) == (3 << 24, 3, 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_lane_keeps_to_its_part_of_the_cores(start: Start) -> None:
    process = start("--lane=1", replicas=2)
    process.wait_for_line("shard-l1: ready")
    cores = physical_cores(os.sched_getaffinity(0))
    part, _ = part_of(cores, len(cores), 1, 2)
    assert os.sched_getaffinity(process.child.pid) == set(part)


def test_a_lane_beyond_the_replicas_is_a_mistake(start: Start) -> None:
    process = start("--lane=2", replicas=2)
    assert process.wait() == 2
    assert process.log[-1] == "error: `--lane` is 2, but `--replicas` is 2"

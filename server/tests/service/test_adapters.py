"""The answers to `OpenAdapter`, and the outcomes of loads."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from tests.fakes.adapters import HASH
from tests.fakes.backend import FakeBackend
from tests.fakes.shard import Client, serve
from trunkline_server._proto.shard_pb2 import AdapterLoad, AdapterOutcome, StepPlan


def test_an_adapter_is_opened_or_refused_with_the_reason(socket_folder: Path) -> None:
    with serve(FakeBackend(num_adapter_slots=2), socket_folder / "s"), Client(socket_folder / "s") as client:
        described = client.describe()
        assert (described.num_adapter_slots, described.adapter_bytes) == (2, 128)
        opened = client.open_adapter("/adapters/known")
        assert (opened.path, opened.content_hash, opened.rank) == ("/adapters/known", HASH, 4)
        with pytest.raises(grpc.RpcError) as refused:
            client.open_adapter("/adapters/other")
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == "adapter `/adapters/other` does not exist"


def test_a_shard_without_slots_takes_no_adapters(socket_folder: Path) -> None:
    with serve(FakeBackend(), socket_folder / "s"), Client(socket_folder / "s") as client:
        assert client.describe().num_adapter_slots == 0
        with pytest.raises(grpc.RpcError, match="this shard takes no adapters; hint: start the server with `--lora`"):
            client.open_adapter("/adapters/known")


def test_loads_are_answered_while_no_step_runs(socket_folder: Path) -> None:
    with serve(FakeBackend(num_adapter_slots=2), socket_folder / "s"), Client(socket_folder / "s") as client:
        client.describe()
        stream = client.open()
        paths = {2: "/adapters/known", 1: "/no"}
        loads = [AdapterLoad(slot=slot, path=path, content_hash=HASH) for slot, path in paths.items()]
        stream.send(StepPlan(step_id=1, adapter_loads=[AdapterLoad(slot=1), AdapterLoad(slot=2)]))
        stream.send(StepPlan(step_id=2, adapter_loads=loads))
        outcomes: list[AdapterOutcome] = []
        while len(outcomes) < 2:
            response = stream.response()
            outcomes.extend(response.transfers.adapters)
        assert {outcome.slot: outcome.problem for outcome in outcomes} == {2: "", 1: "adapter `/no` does not exist"}
        stream.close()


@pytest.mark.parametrize(
    ("loads", "problem"),
    [
        ([AdapterLoad(slot=3, content_hash=HASH)], r"slots \[3\], expected different ones from 1 to 2"),
        ([AdapterLoad(slot=1, content_hash=HASH)] * 2, r"slots \[1, 1\], expected different ones"),
        ([AdapterLoad(slot=1, path="/a", content_hash=b"x")], "adapter `/a` with a hash of 1 bytes, expected 32"),
        ([AdapterLoad(slot=1, content_hash=HASH)], "a hash of 32 bytes, expected 0"),
    ],
)
def test_impossible_loads_end_the_stream(loads: list[AdapterLoad], problem: str, socket_folder: Path) -> None:
    with serve(FakeBackend(num_adapter_slots=2), socket_folder / "s"), Client(socket_folder / "s") as client:
        client.describe()
        stream = client.open()
        stream.send(StepPlan(step_id=1, adapter_loads=loads))
        assert re.search(problem, str(stream.error().details()))

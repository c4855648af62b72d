"""Replays the recorded conversation against this side of the contract."""

from __future__ import annotations

import pytest
from google.protobuf import json_format
from tests.fakes.backend import FakeBackend
from tests.fakes.shard import Client
from tests.service import conversation
from trunkline_server._proto import shard_pb2 as pb


@pytest.fixture(params=[0, 1], ids=["store", "windows"])
def backend(request: pytest.FixtureRequest) -> FakeBackend:
    return conversation.windowed_backend() if request.param else conversation.backend()


def test_recorded_conversation_replays_through_the_socket(client: Client, backend: FakeBackend) -> None:
    has_windows = bool(backend.info.num_window_parts)
    stream, lines = client.open(), conversation.read_stream(int(has_windows))
    num_results = 0
    for line in lines:
        if "describe" in line:
            assert conversation.to_json(client.describe()) == line["describe"]
        elif "plan" in line:
            stream.send(json_format.ParseDict(line["plan"], pb.StepPlan()))
        elif "late_mask" in line:
            stream.tell(json_format.ParseDict(line["late_mask"], pb.LateMask()))
        else:
            result = stream.receive()
            result.device_time_us = 0
            assert conversation.to_json(result) == line["result"]
            num_results += 1
    stream.close()
    assert list(stream.call) == []
    assert num_results == sum("plan" in line for line in lines) > 0


def test_recorded_conversation_is_what_is_recorded_from_its_plans() -> None:
    lines = [conversation.render(line) for line in conversation.record()]
    assert conversation.PATH.read_text(encoding="utf-8").splitlines(keepends=True) == lines


def test_recorded_conversation_shows_every_field_of_the_plan_and_the_result() -> None:
    seen: set[str] = set()

    def walk(message: object) -> None:
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            seen.add(field.full_name)
            if field.message_type is not None:
                for inner in value if not hasattr(value, "ListFields") else [value]:
                    walk(inner)

    for line in conversation.read():
        if "plan" in line:
            walk(json_format.ParseDict(line["plan"], pb.StepPlan()))
        elif "late_mask" in line:
            walk(json_format.ParseDict(line["late_mask"], pb.LateMask()))
        elif "result" in line:
            walk(json_format.ParseDict({**line["result"], "device_time_us": 1, "draft_time_us": 1}, pb.StepResult()))
    names = ("StepPlan", "SequenceStart", "SamplingParams", "BlockCopy", "Chunk", "BlockStore", "Restore",
             "BlockRestore", "StepResult", "SequenceResult", "SampledToken", "TokenLogprob",
             "SequenceError", "LateMask", "AdapterLoad")  # fmt: skip
    declared = {f.full_name for name in names for f in pb.DESCRIPTOR.message_types_by_name[name].fields}
    assert declared - seen == set()

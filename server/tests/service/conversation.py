"""The recorded conversation between a router and a shard, which the tests of both sides replay.

        PYTHONPATH=server python -m tests.service.conversation        records proto/testdata/conversation.jsonl again

Plans and late masks are those of the file, which is edited by hand; recording writes them in full and adds what the
shard answers. `proto/testdata/README.md` describes the file and its steps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor, json_format, message
from tests.fakes.adapters import FakeLoader
from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from tests.fakes.shard import MODEL
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.engine import Engine
from trunkline_server.named_masks import NamedMasks
from trunkline_server.plan_checks import read_request
from trunkline_server.service import describe

PATH = Path(__file__).resolve().parents[3] / "proto" / "testdata" / "conversation.jsonl"

_INT64_TYPES = (descriptor.FieldDescriptor.TYPE_UINT64, descriptor.FieldDescriptor.TYPE_INT64)


def backend() -> FakeBackend:
    """Returns the backend with which the conversation was recorded."""
    return FakeBackend(has_store=True, reads_other_stores=True, num_adapter_slots=2)


def windowed_backend() -> FakeBackend:
    """Returns the backend of a model whose layers have a window, with three window parts of four positions."""
    return FakeBackend(window_size=5, num_window_parts=3)


def record() -> list[dict[str, Any]]:
    return _record(backend(), read_stream(0)) + _record(windowed_backend(), read_stream(1))


def _record(fake: FakeBackend, stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs the plans of a stream, two ahead, and returns the lines."""
    engine = Engine(fake, vocab_size=VOCAB_SIZE)
    if fake.info.num_adapter_slots:
        engine.load_adapters_with(FakeLoader())
    lines: list[dict[str, Any]] = [{"describe": to_json(describe(MODEL, fake.info))}]
    results: list[dict[str, Any]] = []
    named_masks = NamedMasks()
    output: list[int] = []
    for line, following in itertools.pairwise([*stream, {}]):
        if "plan" not in line:
            continue
        plan = json_format.ParseDict(line["plan"], pb.StepPlan())
        for start in plan.starts:
            if len(start.token_ids) > start.num_prompt_tokens:
                # Sequence 1 resumes with its output.
                del start.token_ids[start.num_prompt_tokens :]
                start.token_ids.extend(output)
        late = [json_format.ParseDict(each, pb.LateMask()) for name, each in following.items() if name == "late_mask"]
        request = pb.StepRequest(plan=plan, late_masks=late)
        masks = engine.make_late_masks()
        checked = read_request(request, fake.info, masks, named_masks)
        assert checked is not None
        result = engine.step(checked, masks)
        result.device_time_us = 0
        output.extend(s.token.token_id for s in result.sequences if s.sequence_id == 1 and s.HasField("token"))
        lines.append({"plan": to_json(plan)})
        lines.extend({"late_mask": to_json(mask)} for mask in late)
        results.append({"result": to_json(result)})
        if len(results) == 2:
            lines.append(results.pop(0))
    return lines + results


def read() -> Iterator[dict[str, Any]]:
    with PATH.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def read_stream(index: int) -> list[dict[str, Any]]:
    lines = list(read())
    first, second = [number for number, line in enumerate(lines) if "describe" in line]
    return lines[second:] if index else lines[first:second]


def to_json(value: message.Message) -> dict[str, Any]:
    """Converts to proto3 JSON with all fields, in snake case, 64-bit numbers as numbers."""
    fields = json_format.MessageToDict(
        value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _numbers(fields, value.DESCRIPTOR)


def render(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def _numbers(fields: dict[str, Any], kind: descriptor.Descriptor) -> dict[str, Any]:
    for name, value in fields.items():
        field = kind.fields_by_name[name]
        if field.message_type is not None:
            for inner in value if isinstance(value, list) else [value]:
                _numbers(inner, field.message_type)
        elif field.type in _INT64_TYPES:
            fields[name] = [int(number) for number in value] if isinstance(value, list) else int(value)
    return fields


if __name__ == "__main__":
    PATH.write_text("".join(map(render, record())), encoding="utf-8")

"""The recorded conversation between a router and a shard, which the tests of both sides replay.

        PYTHONPATH=server python -m tests.service.conversation        records proto/testdata/conversation.jsonl again

There are two streams, one of a shard with a store and one of a shard whose blocks have two parts. The file has one JSON
object per line, in the order of the wire: `{"describe": ...}` first, then `{"plan": ...}`, `{"late_mask": ...}` and
`{"result": ...}`; two plans may precede their results. Messages are in proto3's JSON form with the field names of
shard.proto, all fields written out, 64-bit numbers as numbers. `device_time_us` is 0 in the record and not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor, json_format, message
from tests.fakes.backend import POISON_TOKEN, VOCAB_SIZE, FakeBackend
from tests.fakes.shard import MODEL
from tests.fakes.store import block_key
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.engine import Engine
from trunkline_server.named_masks import NamedMasks
from trunkline_server.service import describe
from trunkline_server.wire import PlanLimits, decode_request, encode_result

PATH = Path(__file__).resolve().parents[3] / "proto" / "testdata" / "conversation.jsonl"

DRAFTS = [28, 0]
# The key before the first block of every sequence.
ROOT_KEY = bytes(range(16))

_INT64_TYPES = (descriptor.FieldDescriptor.TYPE_UINT64, descriptor.FieldDescriptor.TYPE_INT64)


def backend() -> FakeBackend:
    """Returns the backend with which the conversation was recorded."""
    return FakeBackend(has_store=True)


def windowed_backend() -> FakeBackend:
    """Returns the backend of a model whose layers have a window, with three window parts of four positions."""
    return FakeBackend(window_size=5, num_window_parts=3)


def sampling(**fields: Any) -> pb.SamplingParams:
    return pb.SamplingParams(**{"top_p": 1.0, "repetition_penalty": 1.0, "typical_p": 1.0, **fields})


def plans() -> list[pb.StepPlan]:
    """Returns plans with every message and field of the contract, every outcome, and a preemption with a prefix hit."""
    prompt = [7, 3, 9, 3, 7, 1, 20, 21, 22, 5]
    rich = sampling(
        temperature=0.75, top_p=0.9375, top_k=40, min_p=0.0625, seed=2**53 - 1, choice=1, presence_penalty=0.5,
        frequency_penalty=-0.25, repetition_penalty=1.125, min_tokens=2, end_token_ids=[2, 0], num_top_logprobs=3,
        logprobs=True,
    )  # fmt: skip
    return [
        # A prompt in two chunks; the second samples.
        pb.StepPlan(
            step_id=1,
            starts=[_start(1, prompt, len(prompt), sampling(logprobs=True))],
            chunks=[_chunk(1, 0, 6, [3, 5], stores=[(0, 2)])],
        ),
        pb.StepPlan(step_id=2, chunks=[_chunk(1, 6, 4, [4], sample=True, stores=[(1, 0)])]),
        # A decode beside a second sequence, whose first two blocks are a prefix hit and whose third is shared by copy.
        pb.StepPlan(
            step_id=3,
            starts=[_start(2, [*prompt[:9], 11], 10, rich)],
            copies=[pb.BlockCopy(source_block_id=4, destination_block_id=9, num_tokens=1)],
            chunks=[_chunk(1, 10, 1, sample=True), _chunk(2, 9, 1, [3, 5, 9], sample=True)],
        ),
        # Run-ahead: the tokens at positions 11 and 10 are those that step 3 samples.
        pb.StepPlan(step_id=4, chunks=[_chunk(1, 11, 1, sample=True), _chunk(2, 10, 1, sample=True)]),
        # A sequence that fails, one with an invalid start, and a chunk past the known tokens.
        pb.StepPlan(
            step_id=5,
            starts=[
                _start(3, [1, POISON_TOKEN], 2, sampling()),
                _start(4, [1, VOCAB_SIZE], 2, sampling()),
                _start(5, [1, 2], 2, sampling()),
            ],
            chunks=[
                _chunk(3, 0, 2, [1], sample=True),
                _chunk(1, 12, 1, [2], sample=True),
                _chunk(4, 0, 2, [10], sample=True),
                _chunk(5, 0, 3, [6], sample=True),
                _chunk(77, 0, 1, [7], sample=True),
            ],
        ),
        # Sequence 1 is preempted; the failed ones end. Sequence 2 may only sample 9, 40 or 41.
        pb.StepPlan(step_id=6, ends=[1, 3, 4, 5], chunks=[_chunk(2, 11, 1, sample=True, allowed=[9, 40, 41])]),
        # Sequence 1 resumes as 6 with its output, hits three blocks and computes the rest. Two tokens are appended to
        # sequence 2, whose mask comes late.
        pb.StepPlan(
            step_id=7,
            starts=[_start(6, [], len(prompt), sampling(logprobs=True))],
            chunks=_chunks_of_step_7(),
        ),
        # The first block is restored from the slot that step 1 wrote, onto another block; an empty slot is discarded.
        pb.StepPlan(
            step_id=8,
            ends=[2, 6],
            restores=[pb.Restore(restore_id=1, blocks=[_first_block(prompt)])],
            discards=[3],
        ),
        *scored_plans(prompt[:5]),
    ]


def _first_block(prompt: list[int]) -> pb.BlockRestore:
    key = block_key(ROOT_KEY, prompt[:4], block_size=4)
    return pb.BlockRestore(slot=2, block_id=12, key=key, base_only=True)


def scored_plans(prompt: list[int]) -> list[pb.StepPlan]:
    """Returns steps 9 to 15: a prompt whose logprobs are reported, in two chunks, steps with drafts, and a vector."""
    scored = sampling(
        logit_bias=[pb.TokenBias(token_id=3, bias=-100.0), pb.TokenBias(token_id=4, bias=0.5)],
        allowed_tokens=_mask([*range(3), *range(6, VOCAB_SIZE)]),
        mask_id=2,
        typical_p=0.875,
        num_top_prompt_logprobs=2,
        watermark=pb.Watermark(gamma=0.25, delta=2.5, key=2**53 - 3),
        top_n_sigma=2.5,
        xtc_probability=0.5,
        xtc_threshold=0.125,
    )
    return [
        pb.StepPlan(
            step_id=9,
            starts=[_start(8, prompt, len(prompt), scored)],
            chunks=[_chunk(8, 0, 3, [13], score=True)],
        ),
        pb.StepPlan(step_id=10, chunks=[_chunk(8, 3, 2, [14], sample=True, score=True)]),
        # Of two drafts, the first one is right.
        pb.StepPlan(step_id=11, chunks=[_chunk(8, 5, 1, sample=True, drafts=DRAFTS)]),
        # Under a grammar each sample has a mask.
        pb.StepPlan(
            step_id=12,
            chunks=[_chunk(8, 7, 1, [15], sample=True, allowed=[33], drafts=[33, 7], draft_masks=[[34, 35], [36]])],
        ),
        # The draft model drafts two tokens, which are wrong.
        pb.StepPlan(step_id=13, chunks=[_chunk(8, 9, 1, sample=True, num_own_drafts=2)]),
        # A vector is asked for instead of a token.
        pb.StepPlan(
            step_id=14,
            ends=[8],
            starts=[_pooled(_start(9, prompt, len(prompt), sampling()))],
            chunks=[_chunk(9, 0, 5, [13, 14], sample=True)],
        ),
        pb.StepPlan(step_id=15, ends=[9]),
    ]


def _pooled(start: pb.SequenceStart) -> pb.SequenceStart:
    start.pooled.second_text = 3
    return start


def _chunks_of_step_7() -> list[pb.Chunk]:
    awaits = _chunk(2, 12, 3, [8], sample=True, appended=[30, 31], awaits=True)
    return [_chunk(6, 12, 2, [3, 5, 4, 2], sample=True), awaits]


def late_masks() -> dict[int, list[pb.LateMask]]:
    """Returns the late masks of the first stream, by step."""
    return {7: [pb.LateMask(sequence_id=2, allowed_tokens=_mask([50, 51, 52]), mask_id=1)]}


def windowed_plans() -> list[pb.StepPlan]:
    """Returns plans of a prompt that moves past its window, a hit inside it, and a hit whose part was dropped."""
    prompt = [7, 3, 9, 3, 7, 1, 20, 21, 22, 5, 6, 8, 2]
    return [
        pb.StepPlan(
            step_id=1,
            starts=[_start(1, prompt, len(prompt), sampling())],
            chunks=[_chunk(1, 0, 8, [3, 5])],
        ),
        # Position 8 looks at positions 4 and later.
        pb.StepPlan(step_id=2, window_drops=[3], chunks=[_chunk(1, 8, 4, [4])]),
        pb.StepPlan(step_id=3, window_drops=[5], chunks=[_chunk(1, 12, 1, [6], sample=True)]),
        # Positions 8 to 11 are available to a second turn; positions 4 to 7 are not available to a third.
        pb.StepPlan(
            step_id=4,
            ends=[1],
            starts=[_start(2, [*prompt[:12], 9], 13, sampling()), _start(3, [*prompt[:8], 9], 9, sampling())],
            window_drops=[6],
            chunks=[_chunk(2, 12, 1, [3, 5, 4, 8], sample=True), _chunk(3, 8, 1, [3, 5, 9], sample=True)],
        ),
        pb.StepPlan(step_id=5, ends=[2, 3], window_drops=[4, 8]),
    ]


def record() -> list[dict[str, Any]]:
    return _record(backend(), plans()) + _record(windowed_backend(), windowed_plans())


def _record(fake: FakeBackend, plans: list[pb.StepPlan]) -> list[dict[str, Any]]:
    """Runs the plans, two ahead, and returns the lines."""
    engine = Engine(fake, vocab_size=VOCAB_SIZE)
    lines: list[dict[str, Any]] = [{"describe": to_json(describe(MODEL, fake.info))}]
    results: list[dict[str, Any]] = []
    named_masks = NamedMasks()
    output: list[int] = []
    for plan in plans:
        for start in plan.starts:
            if start.sequence_id == 6:
                start.token_ids.extend([7, 3, 9, 3, 7, 1, 20, 21, 22, 5, *output])
        late = late_masks().get(plan.step_id, []) if any(chunk.awaits_mask for chunk in plan.chunks) else []
        request = pb.StepRequest(plan=plan, late_masks=late)
        decoded = decode_request(request, PlanLimits.of(fake.info), engine.make_late_masks(), named_masks)
        assert decoded is not None
        response = encode_result(engine.step(decoded))
        response.result.device_time_us = 0
        output.extend(s.token.token_id for s in response.result.sequences if s.sequence_id == 1 and s.HasField("token"))
        lines.append({"plan": to_json(plan)})
        lines.extend({"late_mask": to_json(mask)} for mask in late)
        results.append({"result": to_json(response.result)})
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


def _start(
    sequence_id: int, token_ids: list[int], num_prompt_tokens: int, params: pb.SamplingParams
) -> pb.SequenceStart:
    return pb.SequenceStart(
        sequence_id=sequence_id,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        sampling=params,
        root_key=ROOT_KEY,
    )


def _chunk(
    sequence_id: int,
    first_position: int,
    num_tokens: int,
    new_block_ids: list[int] | None = None,
    *,
    sample: bool = False,
    stores: list[tuple[int, int]] | None = None,
    appended: list[int] | None = None,
    allowed: list[int] | None = None,
    awaits: bool = False,
    score: bool = False,
    drafts: list[int] | None = None,
    draft_masks: list[list[int]] | None = None,
    num_own_drafts: int = 0,
) -> pb.Chunk:
    return pb.Chunk(
        sequence_id=sequence_id,
        first_position=first_position,
        num_tokens=num_tokens,
        new_block_ids=new_block_ids or [],
        sample=sample,
        stores=[pb.BlockStore(block_index=index, slot=slot) for index, slot in stores or []],
        appended_token_ids=appended or [],
        allowed_tokens=_mask(allowed) if allowed else b"",
        awaits_mask=awaits,
        score=score,
        draft_token_ids=drafts or [],
        draft_masks=[_mask(allowed) for allowed in draft_masks or []],
        num_own_drafts=num_own_drafts,
    )


def _mask(token_ids: list[int]) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(VOCAB_SIZE // 8, "little")


if __name__ == "__main__":
    PATH.write_text("".join(map(render, record())), encoding="utf-8")

"""The whole path of the cuda backend on tiny models, beside the reference backend."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import running
from tests.models.compared import CUDA_CASES
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import changed, new_biases, new_chunk, new_start
from tests.running import Runner, all_sampled, error_of, token_of
from tests.tiers import IS_FULL, first, full
from trunkline_server._proto.shard_pb2 import SampledToken, SamplingParams, SequenceResult, Watermark
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build, untested_parts
from trunkline_server.backends.cuda.device import CudaDevice, Device, Event, Stream
from trunkline_server.backends.cuda.kv_pool import KvFormat
from trunkline_server.backends.cuda.tier_build import TierOptions
from trunkline_server.backends.interface import INVALID_PLAN, NOT_FINITE, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 24).tolist()
WITH_LOGPROBS = sampling_params(logprobs=True, num_top_logprobs=3)
BLOCK_SIZE = 16
NUM_BLOCKS = 32
# On a card, whole models are in bf16 as on servers, because f32's kernels compile for minutes. Largest difference of
# logits and logprobs from those of the reference, which stays in f32.
IS_BF16 = torch.cuda.is_available()
DTYPE, ATOL = (torch.bfloat16, 0.15) if IS_BF16 else (torch.float32, 2e-4)


def build_cuda(checkpoint: Checkpoint, device: str | Device, **changes: Any) -> CudaBackend:
    options: dict[str, Any] = {
        "max_batch_total_tokens": NUM_BLOCKS * BLOCK_SIZE, "max_step_tokens": 64, "max_step_sequences": 8,
        "dtype": DTYPE, "block_size": BLOCK_SIZE,
    }  # fmt: skip
    if isinstance(device, str):
        device = CudaDevice() if device == "cuda" else Device()
    return build(checkpoint, device=device, **{**options, **changes})


@pytest.fixture(scope="module")
def checkpoint(tiny_model: TinyModels) -> Checkpoint:
    return open_checkpoint(tiny_model("qwen2_shallow").folder)


@pytest.fixture(scope="module")
def built(checkpoint: Checkpoint, device: str) -> CudaBackend:
    return build_cuda(checkpoint, device)


@pytest.fixture
def backend(built: CudaBackend) -> CudaBackend:
    built.reset()
    return built


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> ReferenceBackend:
    return ReferenceBackend(checkpoint, max_batch_total_tokens=NUM_BLOCKS * BLOCK_SIZE, max_step_tokens=64)


def run_alone(
    backend: Any, cuts: list[int], blocks: list[int], params: SamplingParams = WITH_LOGPROBS, num_decodes: int = 4
) -> list[SampledToken]:
    return running.run_alone(backend, PROMPT, cuts, blocks, params, num_decodes=num_decodes)


assert_same = partial(running.assert_same, atol=1e-4)


def assert_near(actual: list[SampledToken], expected: list[SampledToken]) -> None:
    """Compares greedy tokens with the reference's. In bf16, tokens that are nearly as likely change places, so the
    first one may be any of the likeliest and the others are not compared.
    """
    if not IS_BF16:
        running.assert_same(actual, expected, ATOL)
        return
    likeliest = {top.token_id: top.logprob for top in expected[0].top_logprobs}
    assert actual[0].logprob == pytest.approx(likeliest.get(actual[0].token_id), abs=ATOL)


def mask_of(*token_ids: int) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(-(-VOCAB_SIZE // 8), "little")


@pytest.mark.parametrize(
    "case",
    first(
        CUDA_CASES,
        "gemma2", "gemma3_shallow", "smollm3_marked", "llama_biases", "qwen2_moe", "qwen3_moe_mixed", "cohere2", "glm4",
        "nemotron", "phi3_longrope", "starcoder2", "deepseek_v3", "gpt_oss", "lfm2", "granitemoehybrid", "qwen3_next",
    ),
)  # fmt: skip
def test_logits_match_the_reference(case: str, tiny_model: TinyModels, device: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    if checkpoint.config.head_size % 16:
        with pytest.raises(InvalidArgument, match=f"head size is {checkpoint.config.head_size}"):
            build_cuda(checkpoint, device)
        return
    tokens = PROMPT[:13]
    actual = build_cuda(checkpoint, device, max_step_sequences=16).score(tokens)
    np.testing.assert_allclose(actual, ReferenceBackend(checkpoint).score(tokens), atol=ATOL)


def test_a_prompt_in_chunks_then_decodes(backend: CudaBackend, reference: ReferenceBackend) -> None:
    expected = run_alone(reference, [24], [3, 1, 2])
    assert_near(run_alone(backend, [9, 15], [9, 4, 30]), expected)


def test_latents_in_chunks_then_decodes(tiny_model: TinyModels, device: str) -> None:
    checkpoint = open_checkpoint(tiny_model("deepseek_v2").folder)
    backend = build_cuda(checkpoint, device)
    size = checkpoint.config.head_size
    assert backend.info.bytes_per_block == BLOCK_SIZE * checkpoint.config.num_layers * size * DTYPE.itemsize
    expected = run_alone(ReferenceBackend(checkpoint), [24], [3, 1, 2], num_decodes=1)
    assert_near(run_alone(backend, [9, 15], [9, 4, 30], num_decodes=1), expected)


@pytest.mark.skipif(IS_BF16, reason="bf16 draws other tokens; `test_choose` compares the sampler")
def test_seeds_draw_what_the_reference_draws(backend: CudaBackend, reference: ReferenceBackend) -> None:
    params = changed(
        WITH_LOGPROBS, temperature=1.0, top_p=0.9, top_k=50, seed=77, repetition_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.2, logit_bias=new_biases((5, 1.0)), min_tokens=3, end_token_ids=(1, 2),
        watermark=Watermark(gamma=0.4, delta=3.0, key=2**63 + 5),
    )  # fmt: skip
    num_decodes = 6 if IS_FULL else 4
    expected = run_alone(reference, [24], [0, 1, 2], params, num_decodes=num_decodes)
    assert_same(run_alone(backend, [24], [0, 1, 2], params, num_decodes=num_decodes), expected)


def test_sequences_side_by_side_some_prefill_some_decode(backend: CudaBackend, reference: ReferenceBackend) -> None:
    """Each sequence gives the same results as alone."""
    outputs = {}
    for name, one in (("reference", reference), ("cuda", backend)):
        runners = [Runner(number, iter(range(4 * number, 4 * number + 4)), 3 + 7 * number) for number in (1, 2, 3)]
        for runner in runners:
            one.start(new_start(runner.sequence_id, PROMPT[: runner.num_known], runner.num_known, WITH_LOGPROBS))
        for cuts in ((10, 0, 5), (1, 17, 10), (1, 1, 9), (1, 1, 1)):
            chunks = [runner.chunk(cut) for runner, cut in zip(runners, cuts, strict=True) if cut]
            for outcome in one.step(chunks).sequences:
                runners[outcome.sequence_id - 1].take(token_of(outcome))
        for runner in runners:
            one.end(runner.sequence_id)
        outputs[name] = [runner.output for runner in runners]
    for actual, expected in zip(outputs["cuda"], outputs["reference"], strict=True):
        assert_near(actual, expected)


def test_two_steps_in_flight_equal_consecutive_steps(backend: CudaBackend) -> None:
    """The token of a step in flight stays on the device, even if penalties count it and a watermark depends on it."""
    params = changed(
        WITH_LOGPROBS, temperature=0.8, seed=3, repetition_penalty=1.3, frequency_penalty=0.4,
        watermark=Watermark(gamma=0.5, delta=4.0, key=7),
    )  # fmt: skip
    expected = run_alone(backend, [24], [0, 1, 2], params, num_decodes=3)
    backend.start(new_start(2, PROMPT, len(PROMPT), params))
    runner = Runner(2, iter([5, 6, 7]), len(PROMPT))
    backend.begin([runner.chunk(24)])
    for _ in range(3):
        runner.num_known += 1
        backend.begin([runner.chunk(1)])
        assert backend.num_steps_in_flight == 2
        runner.output += all_sampled(backend.finish())
    runner.output += all_sampled(backend.finish())
    assert [token.token_id for token in runner.output] == [token.token_id for token in expected]
    np.testing.assert_allclose([t.logprob for t in runner.output], [t.logprob for t in expected], atol=1e-5)


def mask_at(position: int) -> bytes:
    """The tokens that the sample at a position may choose, if a sequence is masked."""
    tokens = np.arange(-(-VOCAB_SIZE // 8) * 8)
    return np.packbits((tokens * 7 + position * 3) % 5 < 2, bitorder="little").tobytes()


def decode_with_drafts(
    backend: CudaBackend, params: SamplingParams, drafts: list[list[int]], is_masked: bool
) -> list[SampledToken]:
    """Decodes with the drafts of each step, beside another sequence. Checks that as many samples come as are right."""
    backend.start(new_start(1, PROMPT, len(PROMPT), params))
    backend.start(new_start(2, PROMPT[:9], 9, params))
    mine, other = Runner(1, iter(range(8)), len(PROMPT)), Runner(2, iter(range(8, 16)), 9)
    for step, drafted in enumerate(drafts):
        chunk = mine.chunk(mine.num_known - mine.num_computed, draft_token_ids=drafted)
        if is_masked:
            masks = [mask_at(mine.num_known + index) for index in range(len(drafted) + 1)]
            chunk = changed(chunk, allowed_tokens=masks[0], draft_masks=masks[1:])
        first, beside = backend.step([chunk, other.chunk(9 if step == 0 else 1)]).sequences
        other.take(token_of(beside))
        tokens = [token_of(first), *first.more_tokens]
        num_right = len(tokens) - 1
        assert [token.token_id for token in tokens[:num_right]] == drafted[:num_right]
        assert num_right == len(drafted) or tokens[num_right].token_id != drafted[num_right]
        for token in tokens:
            mine.take(token)
        mine.num_computed += num_right
    backend.end(1)
    backend.end(2)
    return mine.output


@pytest.mark.parametrize("is_masked", [full(False), True])
def test_drafts_change_no_token(backend: CudaBackend, is_masked: bool) -> None:
    params = changed(
        WITH_LOGPROBS, temperature=1.2, top_p=0.95, seed=7, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.3, min_tokens=5, end_token_ids=(3, 5), watermark=Watermark(gamma=0.4, delta=3.0, key=9),
    )  # fmt: skip
    expected = decode_with_drafts(backend, params, [[]] * 8, is_masked)
    tokens = [token.token_id for token in expected]
    wrong = (tokens[3] + 1) % VOCAB_SIZE
    # All right behind a whole prompt, all wrong, the second wrong, and none.
    drafts = [tokens[:2], [wrong, wrong], [tokens[4], wrong], []]
    actual = decode_with_drafts(backend, params, drafts, is_masked)
    assert_same(actual, expected[: len(actual)])
    assert len(actual) == 7


def test_drafts_are_read_behind_a_token_that_is_on_the_device(backend: CudaBackend) -> None:
    expected = run_alone(backend, [24], [0, 1], num_decodes=3)
    tokens = [token.token_id for token in expected]
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    backend.begin([new_chunk(1, 0, 24, [0, 1], True)])
    backend.begin([new_chunk(1, 24, 1, [], True, draft_token_ids=tokens[1:3])])
    (first,), (second,) = backend.finish().sequences, backend.finish().sequences
    assert_same([token_of(first), token_of(second), *second.more_tokens], expected)


def test_only_the_bad_chunk_fails(backend: CudaBackend) -> None:
    expected = run_alone(backend, [24], [0, 1, 2], num_decodes=0)
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    backend.start(new_start(2, PROMPT, len(PROMPT), WITH_LOGPROBS))
    good = new_chunk(1, 0, 24, [0, 1, 2], True)
    chunks = [new_chunk(2, 0, 20, [NUM_BLOCKS], False), new_chunk(9, 0, 1, [3], True), good]
    *failed, sampled = backend.step(chunks).sequences
    assert [error_of(outcome).code for outcome in failed] == [INVALID_PLAN] * 2
    assert_same([token_of(sampled)], expected)


def outcome_of(sequence_id: int, token_id: int) -> SequenceResult:
    return SequenceResult(sequence_id=sequence_id, token=SampledToken(token_id=token_id))


def test_early_and_late_masks_restrict_tokens(backend: CudaBackend) -> None:
    mask = mask_of(77)
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params()))
    (outcome,) = backend.step([new_chunk(1, 0, 24, [0, 1, 2], True, allowed_tokens=mask)]).sequences
    assert outcome == outcome_of(1, 77)
    late = backend.make_late_masks()
    backend.begin([new_chunk(1, 24, 1, [], True, awaits_mask=True)], late)
    late.tell(1, mask)
    assert backend.finish().sequences == [outcome_of(1, 77)]
    backend.begin([new_chunk(1, 25, 1, [], True, awaits_mask=True)], late)
    late.tell(1, b"")
    assert backend.finish().sequences == []
    # Forced tokens follow without being sampled.
    (outcome,) = backend.step([new_chunk(1, 26, 2, [], True, appended_token_ids=[5, 6], allowed_tokens=mask)]).sequences
    assert outcome == outcome_of(1, 77)


class HeldDevice(Device):
    """A device whose work takes as long as the test wants, on a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = HeldStream(self)
        self.is_done = True
        self.now_us = 0
        self.num_marks = 0


class HeldStream(Stream):
    def __init__(self, device: HeldDevice) -> None:
        self._device = device

    def mark(self, *, timed: bool = False) -> Event:
        self._device.num_marks += 1
        return HeldEvent(self._device, timed=timed)


class HeldEvent(Event):
    def __init__(self, device: HeldDevice, *, timed: bool) -> None:
        self._device = device
        self._at_us = device.now_us if timed else None

    def is_reached(self) -> bool:
        return self._device.is_done

    def wait(self) -> None:
        self._device.is_done = True

    def us_since(self, earlier: Event) -> int:
        assert self._device.is_done, "the time of work that is not done is unknown"
        assert isinstance(earlier, HeldEvent) and self._at_us is not None and earlier._at_us is not None
        return self._at_us - earlier._at_us


@pytest.fixture
def held(checkpoint: Checkpoint, device: str) -> CudaBackend:
    if device == "cuda":
        pytest.skip("the device is a fake")
    backend = build_cuda(checkpoint, HeldDevice())
    for number in (1, 2):
        backend.start(new_start(number, PROMPT, len(PROMPT), sampling_params()))
        backend.step([new_chunk(number, 0, 24, [4 * number, 4 * number + 1], True)])
    return backend


def held_device(backend: CudaBackend) -> HeldDevice:
    assert isinstance(backend.device, HeldDevice)
    return backend.device


def test_a_step_is_not_ready_before_all_its_masks_have_come(held: CudaBackend) -> None:
    mask = mask_of(77)
    device, late = held_device(held), held.make_late_masks()
    chunks = [new_chunk(number, 24, 1, [], True, awaits_mask=True) for number in (1, 2)]
    held.begin(chunks, late)
    assert not held.is_ready()
    late.tell(2, mask)
    assert not held.is_ready(), "one of two masks is missing"
    device.is_done, num_marks = False, device.num_marks
    late.tell(1, mask)
    assert not held.is_ready(), "the device samples"
    assert device.num_marks > num_marks, "it has been told to"
    device.is_done = True
    assert held.is_ready()
    assert held.finish().sequences == [outcome_of(1, 77), outcome_of(2, 77)]
    # Masks that never come are as good as empty ones.
    held.begin([new_chunk(number, 25, 1, [], True, awaits_mask=True) for number in (1, 2)], late)
    assert not held.is_ready()
    late.close()
    assert held.is_ready()
    assert held.finish().sequences == []


def test_a_step_begins_while_the_one_before_samples_under_late_masks(held: CudaBackend) -> None:
    device, late = held_device(held), held.make_late_masks()
    held.begin([new_chunk(1, 24, 1, [], True, awaits_mask=True)], late)
    device.is_done = False
    late.tell(1, mask_of(77))
    # As the engine loop does, which looks for a result before it takes the next plan.
    assert not held.is_ready()
    held.begin([new_chunk(1, 25, 1, [], True), new_chunk(2, 24, 1, [], True)])
    assert held.num_steps_in_flight == 2
    device.is_done = True
    assert held.finish().sequences == [outcome_of(1, 77)]
    assert len(all_sampled(held.finish())) == 2


def test_the_time_of_a_step_is_the_devices_without_waits_for_masks(
    held: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, late = held_device(held), held.make_late_masks()

    def takes(time_us: int, work: Any) -> Any:
        def timed(*args: Any, **named: Any) -> Any:
            device.now_us += time_us
            return work(*args, **named)

        return timed

    monkeypatch.setattr(held.runner, "run", takes(70, held.runner.run))
    monkeypatch.setattr(held.sampler, "launch", takes(5, held.sampler.launch))
    monkeypatch.setattr(late, "wait", takes(9000, late.wait))
    held.begin([new_chunk(1, 24, 1, [], True)])
    held.begin([new_chunk(2, 24, 1, [], True, awaits_mask=True)], late)
    held.finish()
    assert held.step_time_us(elapsed_us=123) == 75
    device.now_us += 40_000
    late.tell(2, mask_of(77))
    assert held.finish().sequences == [outcome_of(2, 77)]
    assert held.step_time_us(elapsed_us=123) == 75
    # A step in which nothing runs has no time.
    held.step([new_chunk(9, 0, 1, [], True)])
    assert held.step_time_us(elapsed_us=123) == 0


def test_equal_cards_share_a_fingerprint_whatever_memory_they_report(
    checkpoint: Checkpoint, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda":
        pytest.skip("the card is a fake")
    card = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=81_559 << 20, multi_processor_count=132)

    class Card(Device):
        describe = CudaDevice.describe
        kernel_traits = CudaDevice.kernel_traits

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))

    def info() -> Any:
        return build_cuda(checkpoint, Card()).info

    first = info()
    card.total_memory -= 256 << 20
    second = info()
    assert first.device != second.device, "people see the memory"
    assert first.numeric_fingerprint == second.numeric_fingerprint
    card.multi_processor_count = 114
    assert info().numeric_fingerprint != second.numeric_fingerprint


def test_scores_of_a_prompt(backend: CudaBackend, reference: ReferenceBackend) -> None:
    params = sampling_params(num_top_prompt_logprobs=2)
    found = {}
    for name, one in (("cuda", backend), ("reference", reference)):
        one.start(new_start(1, PROMPT[:9], 9, params))
        outcomes = [
            *one.step([new_chunk(1, 0, 4, [0], False, score=True)]).sequences,
            *one.step([new_chunk(1, 4, 5, [], True, score=True)]).sequences,
        ]
        found[name] = [score for outcome in outcomes for score in outcome.scores]
        one.end(1)
    assert len(found["cuda"]) == 8
    for actual, expected in zip(found["cuda"], found["reference"], strict=True):
        assert actual.logprob == pytest.approx(expected.logprob, abs=ATOL)
        if not IS_BF16:
            assert actual.rank == expected.rank
            assert [top.token_id for top in actual.top_logprobs] == [top.token_id for top in expected.top_logprobs]


def test_a_copied_block_holds_what_the_source_holds(backend: CudaBackend) -> None:
    expected = run_alone(backend, [24], [0, 1, 2])
    backend.copy_block(0, 9, BLOCK_SIZE)
    backend.start(new_start(2, PROMPT, len(PROMPT), WITH_LOGPROBS))
    # A prefix hit: the first block has been computed already.
    runner = Runner(2, iter([9, 10, 11]), len(PROMPT), num_computed=BLOCK_SIZE)
    for num_tokens in (8, 1, 1, 1, 1):
        for token in all_sampled(backend.step([runner.chunk(num_tokens)])):
            runner.take(token)
    assert_same(runner.output, expected)


def test_reset_forgets_sequences_and_steps_in_flight(backend: CudaBackend) -> None:
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    backend.begin([new_chunk(1, 0, 24, [0, 1, 2], True)])
    backend.reset()
    assert backend.num_steps_in_flight == 0
    (outcome,) = backend.step([new_chunk(1, 24, 1, [], True)]).sequences
    assert outcome.HasField("error")


def test_only_the_non_finite_sequence_fails(backend: CudaBackend) -> None:
    """The sequence also fails in the step that began before the failure was known."""
    backend.start(new_start(1, PROMPT, len(PROMPT), changed(WITH_LOGPROBS, allowed_tokens=mask_of(4))))
    nothing = bytearray(-(-VOCAB_SIZE // 8))
    nothing[0] = 1
    backend.begin([new_chunk(1, 0, 24, [0, 1, 2], True, allowed_tokens=bytes(nothing))])
    backend.begin([new_chunk(1, 24, 1, [], True)])
    (first,), (second,) = backend.finish().sequences, backend.finish().sequences
    assert error_of(first).code == NOT_FINITE
    assert error_of(second).code == INVALID_PLAN


@pytest.mark.parametrize(
    ("case", "kv_format", "tiers", "parts"),
    [
        ("qwen2_shallow", KvFormat.INT8, TierOptions(), []),
        ("qwen2_shallow", KvFormat.INT4, TierOptions(host_bytes=1), ["tiers below the device", "int4 keys and values"]),
        ("lfm2_moe", KvFormat.BF16, TierOptions(), ["recurrent layers", "experts"]),
        ("deepseek_v2", KvFormat.BF16, TierOptions(), ["latent attention", "experts"]),
    ],
)
def test_parts_that_no_card_has_run_are_named(
    tiny_model: TinyModels, case: str, kv_format: KvFormat, tiers: TierOptions, parts: list[str]
) -> None:
    config = open_checkpoint(tiny_model(case).folder).config
    assert untested_parts(config, kv_format, tiers) == parts


def test_the_start_warns_of_parts_that_no_card_has_run(
    checkpoint: Checkpoint, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_cuda(checkpoint, device, kv_cache_dtype="int4")
    (record,) = [record for record in caplog.records if record.message == "untested on a card"]
    assert record.levelname == "WARNING"
    assert record.fields == {"parts": "int4 keys and values"}  # type: ignore[attr-defined]

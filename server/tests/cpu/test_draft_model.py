"""A draft model changes how many tokens a step samples, and never which ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cpu.tiny_backend import BLOCK_SIZE, build_tiny
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_chunk, new_start
from tests.running import token_of
from trunkline_server._proto.shard_pb2 import SampledToken, SamplingParams
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import sampling_params
from trunkline_server.errors import DoesNotFit, InvalidArgument
from trunkline_server.weights.checkpoint import open_checkpoint

PROMPT = np.random.default_rng(13).integers(0, VOCAB_SIZE, 2 * BLOCK_SIZE + 5).tolist()
GREEDY = sampling_params(logprobs=True, num_top_logprobs=3)
RANDOM = sampling_params(
    temperature=1.1, top_p=0.95, seed=7, logprobs=True, frequency_penalty=0.3, repetition_penalty=1.2, min_tokens=9,
    end_token_ids=(3, 4),
)  # fmt: skip
NUM_OUTPUT = 30
NUM_BLOCKS = 6


def decode(
    backend: CpuBackend, num_own: int, params: SamplingParams, *, sequence_id: int = 1, hit: int = 0
) -> tuple[list[SampledToken], int, int]:
    """Returns the tokens, and the numbers of steps and of drafts. hit: prompt tokens that an earlier sequence computed
    in the same blocks.
    """
    backend.start(new_start(sequence_id, PROMPT, len(PROMPT), params))
    output: list[SampledToken] = []
    first, end, steps, drafted = hit, len(PROMPT), 0, 0
    while len(output) < NUM_OUTPUT:
        blocks = list(range(NUM_BLOCKS)) if steps == 0 else []
        own = min(num_own, NUM_OUTPUT - len(output) - 1)
        chunk = new_chunk(sequence_id, first, end - first, blocks, sample=True, num_own_drafts=own)
        (outcome,) = backend.step([chunk]).sequences
        assert outcome.num_own_drafts <= own
        drafted += outcome.num_own_drafts
        tokens = [token_of(outcome), *outcome.more_tokens]
        output += tokens
        first, end, steps = end + len(tokens) - 1, end + len(tokens), steps + 1
    backend.end(sequence_id)
    return output, steps, drafted


@pytest.mark.parametrize("case", ["llama3", "gemma3", "deepseek_v2"])
def test_a_model_that_drafts_for_itself_is_always_right_when_greedy(tiny_model: TinyModels, case: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    expected, steps, _ = decode(build_tiny(checkpoint), 0, GREEDY)
    assert steps == NUM_OUTPUT
    backend = build_tiny(checkpoint, draft=checkpoint)
    assert backend.info.max_own_drafts > 0
    assert decode(backend, 4, GREEDY) == (expected, NUM_OUTPUT // 5, 24)
    # A prefix hit is one of the draft model, too.
    hit = 2 * BLOCK_SIZE
    assert decode(backend, 4, GREEDY, sequence_id=2, hit=hit) == (expected, NUM_OUTPUT // 5, 24)


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_any_draft_model_changes_no_token(tiny_model: TinyModels, params: SamplingParams) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    other = open_checkpoint(tiny_model("qwen3").folder)
    plain = build_tiny(checkpoint)
    expected, _, _ = decode(plain, 0, params)
    for draft in (checkpoint, other):
        backend = build_tiny(checkpoint, draft=draft)
        assert backend.info.numeric_fingerprint == plain.info.numeric_fingerprint
        for num_own in (1, 3):
            output, steps, drafted = decode(backend, num_own, params)
            assert output == expected
            assert steps <= NUM_OUTPUT
            assert drafted > 0


def test_sequences_with_and_without_own_drafts_share_steps(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    backend = build_tiny(checkpoint, draft=checkpoint)
    expected, _, _ = decode(build_tiny(checkpoint), 0, GREEDY)
    for sequence_id in (1, 2):
        backend.start(new_start(sequence_id, PROMPT, len(PROMPT), GREEDY))
    known = {1: len(PROMPT), 2: len(PROMPT)}
    computed = {1: 0, 2: 0}
    outputs: dict[int, list[SampledToken]] = {1: [], 2: []}
    while len(outputs[2]) < 12:
        chunks = []
        for sequence_id, own in ((1, 2), (2, 0)):
            blocks = [*range(8 * sequence_id, 8 * sequence_id + NUM_BLOCKS)] if not computed[sequence_id] else []
            first, end = computed[sequence_id], known[sequence_id]
            chunks.append(new_chunk(sequence_id, first, end - first, blocks, sample=True, num_own_drafts=own))
        for outcome in backend.step(chunks).sequences:
            tokens = [token_of(outcome), *outcome.more_tokens]
            outputs[outcome.sequence_id] += tokens
            computed[outcome.sequence_id] = known[outcome.sequence_id] + len(tokens) - 1
            known[outcome.sequence_id] += len(tokens)
    assert len(outputs[1]) == 36
    for sequence_id, output in outputs.items():
        assert output[:NUM_OUTPUT] == expected[: len(output)], sequence_id


def test_a_draft_model_needs_the_same_vocabulary_and_room(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    other = open_checkpoint(tiny_model("llama3").folder)
    other.config = replace(other.config, vocab_size=VOCAB_SIZE + 1)
    with pytest.raises(InvalidArgument, match="`--speculative-model` has a vocabulary of"):
        build_tiny(checkpoint, draft=other)
    info = build_tiny(checkpoint).info
    room = 2 * info.pool_bytes - 1
    with pytest.raises(DoesNotFit):
        build_tiny(checkpoint, draft=checkpoint, available_bytes=room)

"""States of recurrent layers: they change no bit, and blocks keep them where the contract says."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.cpu.tiny_backend import BLOCK_SIZE, Sequences, build_tiny, log_softmax
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_chunk, new_start
from tests.running import all_sampled, error_of
from trunkline_server._proto.shard_pb2 import SampledToken
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.backends.states import num_states
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.errors import DoesNotFit, InvalidArgument
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

CASES = ["lfm2", "lfm2_moe", "granitemoehybrid", "qwen3_next"]
PROMPT = np.random.default_rng(11).integers(0, VOCAB_SIZE, 90).tolist()
SAMPLING = sampling_params(temperature=0.9, seed=7, logprobs=True)
# K and V in f16; 0.00025 was measured.
LOGPROB_BOUND = 0.0006


@pytest.fixture(params=CASES)
def checkpoint(tiny_model: TinyModels, request: pytest.FixtureRequest) -> Checkpoint:
    return open_checkpoint(tiny_model(request.param).folder)


@pytest.fixture
def backend(checkpoint: Checkpoint) -> CpuBackend:
    return build_tiny(checkpoint, kv_cache_dtype="f16")


def test_generated_tokens_are_close_to_the_reference(checkpoint: Checkpoint, backend: CpuBackend) -> None:
    prompt = PROMPT[:30]
    output = Sequences(backend, seed=0).run(prompt, [7, 29], 40, SAMPLING)
    token_ids = prompt + [token.token_id for token in output]
    expected = log_softmax(ReferenceBackend(checkpoint).score(token_ids[:-1]))[len(prompt) - 1 :]
    differences = [abs(token.logprob - row[token.token_id]) for token, row in zip(output, expected, strict=True)]
    assert np.mean(differences) < LOGPROB_BOUND


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_keys_are_rounded_and_scaled_beside_states(checkpoint: Checkpoint, dtype: str) -> None:
    backend = build_tiny(checkpoint, kv_cache_dtype=dtype)
    assert (
        np.abs(log_softmax(backend.score(PROMPT)) - log_softmax(ReferenceBackend(checkpoint).score(PROMPT))).mean()
        < 0.2
    )
    whole = Sequences(backend, seed=0).run(PROMPT, [], 3, SAMPLING)
    assert Sequences(backend, seed=1).run(PROMPT, [21, 50], 3, SAMPLING) == whole


def test_granite_with_attention_in_all_layers_keeps_no_state(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("granitehybrid_attention").folder)
    backend = build_tiny(checkpoint, kv_cache_dtype="f16")
    assert not backend.info.recurrent
    assert backend.info.num_window_parts == 0
    test_generated_tokens_are_close_to_the_reference(checkpoint, backend)


def test_cuts_of_the_prompt_and_threads_change_no_bit(checkpoint: Checkpoint, backend: CpuBackend) -> None:
    whole = Sequences(backend, seed=0).run(PROMPT, [], 6, SAMPLING)
    other = build_tiny(checkpoint, kv_cache_dtype="f16", threads=3)
    for seed in range(8):
        cuts = sorted(random.Random(seed).sample(range(1, len(PROMPT)), 3))
        assert Sequences(other, seed).run(PROMPT, cuts, 6, SAMPLING) == whole, (seed, cuts)
        other.drop_window_parts(range(other.info.num_device_blocks))


def test_the_reference_cuts_prompts_as_well(checkpoint: Checkpoint) -> None:
    reference = ReferenceBackend(checkpoint, block_size=BLOCK_SIZE)
    assert reference.info.recurrent
    whole = np.stack([token.logprob for token in sampled(reference, [90])])
    for cuts in ([7, 90], [16, 32, 90], [5, 70, 90]):
        # Torch sums products of other sizes in another order.
        np.testing.assert_allclose([token.logprob for token in sampled(reference, cuts)], whole, atol=1e-4)


def sampled(backend: CpuBackend | ReferenceBackend, ends: list[int], first: int = 0) -> list[SampledToken]:
    """Computes `PROMPT` from `first` on in chunks with these ends, then three tokens, in blocks 0 to 6."""
    backend.start(new_start(1, PROMPT, len(PROMPT), SAMPLING))
    blocks = list(range(7))
    output: list[SampledToken] = []
    for end in [*ends, 91, 92, 93]:
        output += all_sampled(backend.step([new_chunk(1, first, end - first, blocks, sample=end >= len(PROMPT))]))
        first, blocks = end, []
    backend.end(1)
    return output


def test_a_prefix_hit_begins_with_the_state_of_a_whole_block(backend: CpuBackend) -> None:
    # The last two blocks that a chunk writes have states: the ones that end at 64 and at 80, and the one that goes on.
    cold = sampled(backend, [70, 90])
    for hit in (64, 80):
        assert sampled(backend, [90], first=hit) == cold
    backend.start(new_start(1, PROMPT, len(PROMPT), SAMPLING))
    (failed,) = backend.step([new_chunk(1, 32, 58, list(range(7)), sample=True)]).sequences
    assert "block 1 has no window part, but position 32 needs it" in error_of(failed).message


def test_a_block_that_a_chunk_finds_half_filled_gets_its_new_state(backend: CpuBackend) -> None:
    cold = sampled(backend, [90])
    # Block 0 has a state after 7 positions, and is not among the last two of the next chunk.
    assert sampled(backend, [7, 90]) == cold
    assert sampled(backend, [90], first=16) == cold


def test_a_whole_block_is_copied_with_its_state(backend: CpuBackend) -> None:
    cold = sampled(backend, [64, 90])
    backend.copy_block(3, 20, BLOCK_SIZE)
    backend.drop_window_parts([3])
    backend.start(new_start(1, PROMPT, len(PROMPT), SAMPLING))
    (outcome,) = all_sampled(backend.step([new_chunk(1, 64, 26, [0, 1, 2, 20, 21, 22], sample=True)]))
    assert outcome == cold[0]
    with pytest.raises(ValueError, match="cannot copy 5 tokens"):
        backend.copy_block(20, 30, 5)


def test_states_need_room(checkpoint: Checkpoint) -> None:
    num_sequences = 4
    info = build_tiny(checkpoint, max_step_sequences=num_sequences).info
    assert (info.recurrent, info.window_size, info.max_draft_tokens) == (True, 2, 0)
    assert info.bytes_per_window_part == 4 * checkpoint.config.state_size
    # Each running sequence needs three, and as many are kept.
    assert info.num_window_parts == 6 * num_sequences
    assert num_states(100_000, 1_000, num_sequences) == 24
    assert num_states(20_000, 1_000, num_sequences) == 10
    with pytest.raises(DoesNotFit, match=r"3 states of recurrent layers take 3 MiB, but .* leave 5 MiB"):
        num_states(5 << 20, 1 << 20, num_sequences)


def test_what_states_do_not_allow_is_refused_by_name(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="recurrent layers, whose states are not kept on disk"):
        build_tiny(checkpoint, store=StoreOptions(path=tmp_path, max_bytes=1 << 24))
    with pytest.raises(InvalidArgument, match="cannot be rewound"):
        build_tiny(checkpoint, draft=checkpoint)

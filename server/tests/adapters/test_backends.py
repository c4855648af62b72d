"""Sequences with adapters on the backends: against merged weights, and their bits beside others."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.adapter_files import Pairs, magnitudes_of, modules_of, random_pair, save_peft
from tests.adapters.test_merged import MAX_RANK, MergedModel
from tests.cpu.tiny_backend import build_tiny
from tests.models.tiny import CASES, TinyModel
from tests.plans import new_chunk, new_start
from tests.running import all_sampled
from trunkline_server._proto.shard_pb2 import SampledToken, SequenceStart
from trunkline_server.adapters.adapter import load
from trunkline_server.adapters.open import open_adapter
from trunkline_server.backends.interface import Backend, PackedAdapter, sampling_params
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

PROMPT = [5, 9, 2, 17, 3, 8, 1, 12, 6, 21, 4, 7, 19, 11, 2, 5, 23, 3]
PARAMS = sampling_params(logprobs=True, num_top_logprobs=5)
NUM_SLOTS = 3
# What an adapter of one weight may add: few products, or the logits of random models are all alike.
SCALE = 0.02
GENERATIVE = [case for case in CASES if "lm_head" in " ".join(TinyModel(case).weights) or "bert" not in case]


def pairs_of(model: TinyModel, seed: str = "") -> Pairs:
    """Returns a small change of all matrices that take one."""
    pairs = {name: random_pair(name + seed, shape, 4) for name, shape in modules_of(model).items()}
    return {name: (a, SCALE * b) for name, (a, b) in pairs.items()}


def pack(backend: Backend, folder: Path, checkpoint: Checkpoint) -> PackedAdapter:
    adapter = open_adapter(folder, checkpoint.config, MAX_RANK)
    assert backend.adapters is not None
    return backend.adapters.pack(load(adapter, lambda: checkpoint))


def put(backend: Backend, slot: int, folder: Path, checkpoint: Checkpoint) -> None:
    packed = pack(backend, folder, checkpoint)
    assert backend.adapters is not None
    backend.adapters.put(slot, packed)


def reference(checkpoint: Checkpoint, **options: Any) -> Backend:
    backend = pytest.importorskip("trunkline_server.backends.reference.backend")
    built: Backend = backend.ReferenceBackend(checkpoint, **options)
    return built


def start(sequence_id: int, slot: int, scale: float = 1.0, prompt: list[int] = PROMPT) -> SequenceStart:
    begun = new_start(sequence_id, prompt, len(prompt), PARAMS)
    begun.adapter_slot, begun.adapter_scale = slot, scale
    return begun


def run(
    backend: Backend, slot: int, scale: float = 1.0, cuts: tuple[int, ...] = (len(PROMPT),), num_decodes: int = 4
) -> list[SampledToken]:
    """Prefills the prompt in chunks of these sizes, then decodes."""
    backend.start(start(1, slot, scale))
    tokens, first = [], 0
    for num_tokens in [*cuts, *[1] * num_decodes]:
        sample = first + num_tokens >= len(PROMPT)
        chunk = new_chunk(1, first, num_tokens, [1, 2] if first == 0 else [], sample=sample)
        tokens += all_sampled(backend.step([chunk]))
        first += num_tokens
    backend.end(1)
    return tokens


def assert_close(found: list[SampledToken], expected: list[SampledToken], atol: float) -> None:
    """Compares the first tokens' logprobs, by token, because another order of sums may swap close ones."""
    tops = [{top.token_id: top.logprob for top in token.top_logprobs} for token in (found[0], expected[0])]
    common = tops[0].keys() & tops[1].keys()
    assert len(common) >= 4
    np.testing.assert_allclose([tops[0][each] for each in common], [tops[1][each] for each in common], atol=atol)


@pytest.mark.parametrize("case", GENERATIVE)
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_an_adapter_computes_as_merged_weights(case: str, name: str, tmp_path: Path) -> None:
    model = TinyModel(case)
    pairs = pairs_of(model)
    folder = save_peft(tmp_path / "adapter", pairs)
    changes = {module: 2 * (b @ a) for module, (a, b) in pairs.items()}
    base = open_checkpoint(model.save(tmp_path / "base"))
    merged = open_checkpoint(MergedModel(model, changes).save(tmp_path / "merged"))
    options: dict[str, Any] = {"max_loras": NUM_SLOTS, "max_lora_rank": MAX_RANK}
    build = build_tiny if name == "cpu" else reference
    backend, expected = build(base, **options), build(merged)
    put(backend, 2, folder, base)
    plain = run(backend, 0)
    found, wanted = run(backend, 2), run(expected, 0)
    assert_close(found, wanted, 1e-4 if name == "reference" else 2e-3)
    with pytest.raises(AssertionError):
        assert_close(plain, wanted, 2e-3)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_part_of_a_dora_computes_as_merged_weights(name: str, tmp_path: Path) -> None:
    model, scale = TinyModel("qwen2"), 0.5
    pairs, magnitudes = pairs_of(model), magnitudes_of(model)
    folder = save_peft(tmp_path / "adapter", pairs, magnitudes, use_dora=True)
    changes = {}
    for module, (a, b) in pairs.items():
        before = model.stored_weights[f"{module}.weight"]
        after = before + 2 * (b @ a)
        lengths = magnitudes[f"base_model.model.{module}.lora_magnitude_vector"]
        after *= (lengths / np.linalg.norm(after, axis=1))[:, None]
        changes[module] = scale * (after - before)
    base = open_checkpoint(model.save(tmp_path / "base"))
    merged = open_checkpoint(MergedModel(model, changes).save(tmp_path / "merged"))
    options: dict[str, Any] = {"kv_cache_dtype": "f16"} if name == "cpu" else {}
    build = build_tiny if name == "cpu" else reference
    backend = build(base, max_loras=NUM_SLOTS, max_lora_rank=MAX_RANK, **options)
    put(backend, 2, folder, base)
    assert_close(run(backend, 2, scale), run(build(merged, **options), 0), 1e-4 if name == "reference" else 2e-3)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_bits_depend_on_the_request_and_its_adapter_alone(dtype: str, tmp_path: Path) -> None:
    """Alone, in chunks, beside others with and without adapters, and on a backend that takes none."""
    model = TinyModel("llama3")
    base = open_checkpoint(model.save(tmp_path / "base"))
    options: dict[str, Any] = {"threads": 2, "max_loras": NUM_SLOTS, "max_lora_rank": MAX_RANK, "quantize": "int8"}
    backend = build_tiny(base, **options)
    for slot in (1, 2):
        folder = save_peft(tmp_path / str(slot), pairs_of(model, str(slot)), dtype=dtype)
        put(backend, slot, folder, base)
    kinds = [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.5), (1, 1.0), (0, 1.0)]
    alone = [run(backend, *kind) for kind in kinds]
    assert len({tuple(token.logprob for token in tokens) for tokens in alone}) == 4
    assert alone[0] == run(build_tiny(base, threads=1, quantize="int8"), 0)
    assert [run(backend, *kind, cuts=(5, 12, 1)) for kind in kinds] == alone
    for sequence_id, kind in enumerate(kinds, 1):
        backend.start(start(sequence_id, *kind))
    together: list[list[SampledToken]] = [[] for _ in kinds]
    for first, end in itertools.pairwise([0, len(PROMPT), *range(len(PROMPT) + 1, len(PROMPT) + 5)]):
        chunks = [
            new_chunk(number + 1, first, end - first, [2 * number, 2 * number + 1] if first == 0 else [], sample=True)
            for number in range(len(kinds))
        ]
        for tokens, token in zip(together, all_sampled(backend.step(chunks)), strict=True):
            tokens.append(token)
    assert together == alone


def test_a_slot_is_used_only_while_it_has_an_adapter(tmp_path: Path) -> None:
    model = TinyModel("llama3")
    base = open_checkpoint(model.save(tmp_path / "base"))
    backend = build_tiny(base, max_loras=NUM_SLOTS, max_lora_rank=MAX_RANK)
    folder = save_peft(tmp_path / "adapter", pairs_of(model))
    with pytest.raises(ValueError, match="slot 1 has no adapter"):
        backend.start(start(1, 1))
    put(backend, 1, folder, base)
    backend.start(start(1, 1))
    assert backend.adapters is not None
    with pytest.raises(ValueError, match="a started sequence uses slot 1"):
        backend.adapters.put(1, None)
    with pytest.raises(ValueError, match="there is no slot 4; the slots are 1 to 3"):
        backend.adapters.put(4, None)
    backend.end(1)
    backend.adapters.put(1, None)
    with pytest.raises(ValueError, match="slot 1 has no adapter"):
        backend.start(start(1, 1))

"""Sequences with adapters: the kernels against torch, and tiny models beside the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tests.adapters.adapter_files import magnitudes_of, save_peft
from tests.adapters.test_backends import PROMPT, pack, pairs_of, put, run, start
from tests.adapters.test_merged import MAX_RANK as FILE_RANK
from tests.cuda.test_backend import assert_near, build_cuda
from tests.cuda.test_linear import numbers
from tests.cuda.test_runner import CapturingDevice, build_capturing, interpreted
from tests.models.compared import CUDA_CASES
from tests.models.tiny import TinyModel, TinyModels
from tests.plans import new_chunk
from tests.running import all_sampled, assert_same
from tests.tiers import first
from tests.weights.gguf_files import write_model
from trunkline_server._proto.shard_pb2 import SampledToken
from trunkline_server.adapters.adapter import Factors
from trunkline_server.backends.cuda import ops
from trunkline_server.backends.cuda.adapters import DeviceAdapters, SlotLayout
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.device import CudaDevice, Device
from trunkline_server.backends.cuda.kernels.low_rank import add_low_rank
from trunkline_server.backends.cuda.step_input import AdapterUse, Entry, StepLayout, StepShape, shape_of
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.interface import PackedAdapter
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import Tensor

LAYER = "model.layers.0"
# Two splits of K, and more outputs than a tile of query.
WIDTH, SIZES = 1100, {"q_proj": 136, "k_proj": 24, "v_proj": 24}
NUM_SLOTS, MAX_RANK = 3, 40
OPTIONS: dict[str, Any] = {"max_loras": NUM_SLOTS, "max_lora_rank": FILE_RANK}


def integers(*shape: int, seed: int) -> torch.Tensor:
    """Returns eighths, which each dtype represents exactly."""
    return numbers(*shape, dtype=torch.float32, device="cpu", seed=seed) / 8


def factors(name: str, rank: int, shape: tuple[int, int], seed: int, is_dora: bool = False) -> Factors:
    num_outputs, width = shape
    matrices = integers(rank, width, seed=seed), integers(num_outputs, rank, seed=seed + 1)
    a, b = (Tensor(name, "F32", tuple(one.shape), memoryview(one.numpy().tobytes())) for one in matrices)
    gain = 1 + integers(num_outputs, seed=seed + 2).numpy() / 4 if is_dora else None
    return Factors(a, b, 0.5, gain)


def dense(names: Sequence[str], width: int, dtype: torch.dtype) -> DenseWeight:
    ends = [sum(SIZES[name] for name in names[: number + 1]) for number in range(len(names))]
    slices = {
        f"{LAYER}.self_attn.{name}.weight": (end - SIZES[name], end) for name, end in zip(names, ends, strict=True)
    }
    values = torch.zeros(ends[-1], width, dtype=dtype)
    return DenseWeight(
        num_outputs=ends[-1], num_inputs=width, dtype=dtype, values=values, slices=MappingProxyType(slices)
    )


def entry(num_rows: int, slot: int, scale: float = 1.0) -> Entry:
    return Entry([0] * num_rows, 0, range(8), [], adapter=AdapterUse(slot, scale) if slot else None)


@pytest.mark.parametrize("dtype", first([torch.bfloat16, torch.float16, torch.float32], torch.bfloat16, torch.float32))
def test_rows_get_what_their_adapter_adds_alone_and_beside_others(device: str, dtype: torch.dtype) -> None:
    """Of a stack, one of whose weights the first adapter leaves as it is."""
    here = CudaDevice() if device == "cuda" else Device()
    stack = dense(["q_proj", "k_proj", "v_proj"], WIDTH, dtype)
    # What is before the stack in a slot.
    other = DenseWeight.of(f"{LAYER}.self_attn.o_proj.weight", torch.zeros(16, 48, dtype=dtype))
    outside = DenseWeight.of("lm_head.weight", torch.zeros(16, 48, dtype=dtype))
    adapters = DeviceAdapters(SlotLayout([outside, other, stack], MAX_RANK, here.torch_device), NUM_SLOTS, dtype, here)
    q, k, v = stack.slices
    (before,) = other.slices
    shapes = {name: (end - begin, WIDTH) for name, (begin, end) in stack.slices.items()}
    loaded = {
        1: {name: factors(name, 3, shapes[name], seed=10) for name in (q, v)},
        3: {name: factors(name, rank, shapes[name], seed=20 + rank) for name, rank in ((q, 40), (k, 17), (v, 8))},
        # One weight without a gain.
        2: {name: factors(name, 8, shapes[name], seed=50, is_dora=name != k) for name in (q, k)},
    }
    for slot, named in loaded.items():
        # A slot keeps nothing of its last adapter.
        adapters.put(slot, adapters.pack(loaded[3]))
        adapters.put(slot, adapters.pack(named | {before: factors(before, 5, (16, 48), seed=30)}))
    entries = [entry(1, 1), entry(70, 3), entry(2, 0), entry(1, 3, 0.5), entry(5, 1, -2.0), entry(3, 2, 0.5)]
    num_rows = sum(len(one.token_ids) for one in entries)
    x = numbers(num_rows, WIDTH, dtype=dtype, device=device, seed=1)
    product = numbers(num_rows, stack.num_outputs, dtype=dtype, device=device, seed=2)
    bias = integers(stack.num_outputs, seed=3).to(device)
    place = adapters.layout.place(q)
    assert place is not None and place is adapters.layout.place(v) and adapters.layout.place("lm_head.weight") is None

    def added(entries: Sequence[Entry], rows: slice) -> torch.Tensor:
        shape = shape_of(entries, 1, NUM_SLOTS)
        assert shape.num_adapters == NUM_SLOTS
        shape = StepShape(shape.num_rows + 3, shape.num_entries + 2, 1, num_adapters=NUM_SLOTS)
        layout = StepLayout(shape, max_blocks=8)
        words = torch.full((layout.num_words,), 77, dtype=torch.int32)
        layout.write(words.numpy(), entries, 16)
        step = layout.tensors(words.to(device)).adapter_rows
        assert step is not None
        return add_low_rank(x[rows], product[rows].clone(), place, adapters.tensors, step, bias)

    whole, begin = added(entries, slice(0, num_rows)), 0
    for one in entries:
        rows = slice(begin, begin + len(one.token_ids))
        begin = rows.stop
        if one.adapter is None:
            assert torch.equal(whole[rows], product[rows])
            continue
        assert torch.equal(added([one], rows), whole[rows])
        expected = product[rows].double()
        for name, found in loaded[one.adapter.slot].items():
            a, b = (torch.from_numpy(dequantize(one)).double().to(device) for one in (found.a, found.b))
            between = (x[rows].double() @ a.T * found.scale * one.adapter.scale).to(dtype)
            columns = slice(*stack.slices[name])
            gain = torch.ones(()) if found.gain is None else torch.from_numpy(found.gain)
            gain, offset = gain.double().to(device), bias[columns].double()
            factor = 1 + one.adapter.scale * (gain - 1)
            expected[:, columns] = (expected[:, columns] - offset) * factor + offset + gain * (between.double() @ b.T)
        limit = {"rtol": 0.0, "atol": 0.0} if device == "cpu" else {}
        torch.testing.assert_close(whole[rows], expected.to(dtype), **limit)
        assert not torch.equal(whole[rows], product[rows])


def folder_of(model: TinyModel, folder: Path, seed: str = "") -> Path:
    return save_peft(folder, pairs_of(model, seed))


@pytest.mark.parametrize("case", first(CUDA_CASES, "qwen2_moe", "deepseek_v2", "granitemoehybrid"))
def test_a_model_computes_as_on_the_reference(case: str, device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model(case)
    checkpoint, folder = open_checkpoint(model.folder), folder_of(model, tmp_path)
    if checkpoint.config.head_size % 16:
        pytest.skip("the head size is refused")
    compare(checkpoint, folder, device)


def compare(checkpoint: Checkpoint, folder: Path, device: str) -> None:
    found: CudaBackend = build_cuda(checkpoint, device, **OPTIONS)
    expected = ReferenceBackend(checkpoint, **OPTIONS)
    for backend in (found, expected):
        put(backend, 2, folder, checkpoint)
    assert found.info.num_adapter_slots == NUM_SLOTS
    with_adapter = run(expected, 2, 0.5, num_decodes=1)
    assert_near(run(found, 2, 0.5, cuts=(7, 11), num_decodes=1), with_adapter)
    with pytest.raises(AssertionError):
        assert_near(run(expected, 0, num_decodes=1), with_adapter)


def test_a_dora_computes_as_on_the_reference(device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("qwen2_shallow")
    folder = save_peft(tmp_path, pairs_of(model), magnitudes_of(model), use_dora=True)
    compare(open_checkpoint(model.folder), folder, device)


@pytest.mark.parametrize("format", first(["Q4_1", "Q8_0"], "Q4_1"))
def test_a_quantised_model_computes_as_on_the_reference(
    format: str, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model("llama2")
    path = write_model(model, tmp_path / "m.gguf", format, is_quantized=lambda name: ".layers." in name)
    compare(open_checkpoint(path), folder_of(model, tmp_path / "adapter"), device)


# Slots and scales of sequences side by side.
KINDS = [(0, 1.0), (1, 1.0), (3, 1.0), (3, 0.5)]


def together(backend: CudaBackend, packed: PackedAdapter) -> list[list[SampledToken]]:
    """Runs a sequence of each of `KINDS` as `run` does, in steps during which an adapter is put into slot 2."""
    assert backend.slots is not None
    first = 0
    for number, kind in enumerate(KINDS):
        backend.start(start(number, *kind))
    tokens: list[list[SampledToken]] = [[] for _ in KINDS]
    for num_tokens in (len(PROMPT), 1, 1):
        blocks = [[] if first else [2 * number, 2 * number + 1] for number in range(len(KINDS))]
        backend.begin([new_chunk(number, first, num_tokens, blocks[number], True) for number in range(len(KINDS))])
        backend.slots.put(2, packed)
        first += num_tokens
        for found, token in zip(tokens, all_sampled(backend.finish()), strict=True):
            found.append(token)
    for number in range(len(KINDS)):
        backend.end(number)
    return tokens


def assert_equal(found: list[SampledToken], expected: list[SampledToken], device: str) -> None:
    """Compares bits on a GPU. The interpreter's products are numpy's, whose order depends on the shape."""
    if device == "cuda":
        assert found == expected
    assert_same(found, expected, 1e-5)


def test_bits_depend_on_the_request_and_its_adapter_alone(device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    """Alone, in chunks, beside others with and without adapters, and on a backend that takes none."""
    model = tiny_model("qwen2_shallow")
    checkpoint = open_checkpoint(model.folder)
    backend = build_cuda(checkpoint, device, max_step_tokens=128, **OPTIONS)
    for slot in (1, 3):
        put(backend, slot, folder_of(model, tmp_path / str(slot), str(slot)), checkpoint)
    packed = pack(backend, tmp_path / "1", checkpoint)
    plain = run(build_cuda(checkpoint, device), 0, num_decodes=2)
    alone = [run(backend, *kind, num_decodes=2) for kind in KINDS]
    assert alone[0] == plain
    assert len({tuple(token.logprob for token in tokens) for tokens in alone}) == len(KINDS)
    for expected, found in zip(alone, together(backend, packed), strict=True):
        assert_equal(found, expected, device)
    assert_equal(run(backend, 3, cuts=(5, 12, 1), num_decodes=2), alone[2], device)
    # What was put into slot 2 beside steps.
    assert run(backend, 2, num_decodes=2) == alone[1]


@interpreted
def test_replayed_steps_have_the_adapters_of_their_chunks(
    tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters are loaded after the steps were captured. Steps without one launch nothing for them."""
    model, device, num_adding = tiny_model("qwen2_shallow"), CapturingDevice(), 0
    add = ops.add_low_rank

    def counted(*args: Any, **named: Any) -> torch.Tensor:
        nonlocal num_adding
        num_adding += 1
        return add(*args, **named)

    monkeypatch.setattr(ops, "add_low_rank", counted)
    checkpoint = open_checkpoint(model.folder)
    backend, reference = build_capturing(checkpoint, device, 1, **OPTIONS), ReferenceBackend(checkpoint, **OPTIONS)
    folder = folder_of(model, tmp_path)
    for one in (backend, reference):
        put(one, 2, folder, checkpoint)
    for slot in (0, 2):
        num_adding, device.num_replays = 0, 0
        expected = run(reference, slot, num_decodes=1)
        assert_same(run(backend, slot, cuts=(4, 4, 3, 4, 3), num_decodes=1), expected, 1e-4)
        assert device.num_replays == 6
        assert (num_adding > 0) == (slot > 0)


def test_a_slot_is_used_only_while_it_has_an_adapter(device: str) -> None:
    here, weight = CudaDevice() if device == "cuda" else Device(), dense(["q_proj"], 48, torch.float32)
    adapters = DeviceAdapters(SlotLayout([weight], 8, here.torch_device), NUM_SLOTS, torch.float32, here)
    (name,) = weight.slices
    packed = adapters.pack({name: factors(name, 3, weight.shape, seed=1)})
    with pytest.raises(ValueError, match="slot 1 has no adapter"):
        adapters.begin_use(start(1, 1))
    adapters.put(1, packed)
    use = adapters.begin_use(start(1, 1, 0.5))
    assert use == AdapterUse(1, 0.5)
    with pytest.raises(ValueError, match="a started sequence uses slot 1"):
        adapters.put(1, None)
    with pytest.raises(ValueError, match="there is no slot 4; the slots are 1 to 3"):
        adapters.put(4, packed)
    adapters.end_use(use)
    adapters.put(1, None)
    with pytest.raises(ValueError, match="slot 1 has no adapter"):
        adapters.begin_use(start(1, 1))

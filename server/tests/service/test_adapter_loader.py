"""Adapters that an engine loads while others run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.adapter_files import magnitudes_of, modules_of, random_pair, save_peft
from tests.adapters.test_backends import NUM_SLOTS, pairs_of, start
from tests.adapters.test_merged import MAX_RANK
from tests.cpu.tiny_backend import build_tiny
from tests.models.tiny import TinyModel
from tests.plans import new_chunk
from tests.running import DEADLINE_S
from trunkline_server._proto.shard_pb2 import AdapterLoad, AdapterOutcome, OpenAdapterResponse, StepPlan
from trunkline_server.adapter_loader import AdapterLimits, AdapterLoader
from trunkline_server.adapters.base import BaseModel
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.engine import Engine
from trunkline_server.errors import InvalidArgument, ModelNotFound, PlanError
from trunkline_server.weights.checkpoint import open_checkpoint


class Shard:
    """An engine that loads adapters, and its plans."""

    def __init__(self, backend: CpuBackend, model: TinyModel, base: BaseModel) -> None:
        assert backend.adapters is not None
        self.engine = Engine(backend, vocab_size=model.config["vocab_size"])
        limits = AdapterLimits(MAX_RANK, backend.info.adapter_bytes)
        self.loader = AdapterLoader(backend.adapters, base, limits, self.engine.wake)
        self.engine.load_adapters_with(self.loader)
        self.step_id = 0

    def plan(self, **parts: object) -> StepPlan:
        self.step_id += 1
        return StepPlan(step_id=self.step_id, **parts)  # type: ignore[arg-type]

    def load(self, slot: int, opened: OpenAdapterResponse) -> AdapterOutcome:
        load = AdapterLoad(slot=slot, path=opened.path, content_hash=opened.content_hash)
        self.engine.step(self.plan(adapter_loads=[load]))
        while (transfers := self.engine.take_transfers()) is None:
            self.engine.wait_outcomes(DEADLINE_S)
        (outcome,) = transfers.adapters
        assert outcome.slot == slot
        return outcome


@pytest.fixture
def model() -> TinyModel:
    return TinyModel("llama3")


@pytest.fixture
def shard(model: TinyModel, tmp_path: Path) -> Iterator[Shard]:
    base = open_checkpoint(model.save(tmp_path / "base"))
    yield Shard(build_tiny(base, max_loras=NUM_SLOTS, max_lora_rank=MAX_RANK), model, BaseModel.of(base))


def test_an_adapter_is_loaded_between_steps_and_used(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    opened = shard.loader.open(str(save_peft(tmp_path / "adapter", pairs_of(model))))
    assert (opened.path, opened.rank) == (str(tmp_path / "adapter"), 4)
    assert shard.load(2, opened).problem == ""
    chunk = new_chunk(7, 0, 5, [0], sample=True)
    result = shard.engine.step(shard.plan(starts=[start(7, 2, prompt=[5, 9, 2, 17, 3])], chunks=[chunk]))
    assert result.sequences[0].HasField("token")
    with pytest.raises(PlanError, match="a started sequence uses slot 2"):
        shard.load(2, opened)


def test_a_load_fails_if_the_adapter_has_changed_or_is_gone(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    folder = save_peft(tmp_path / "adapter", pairs_of(model))
    opened = shard.loader.open(str(folder))
    save_peft(folder, pairs_of(model, "other"))
    assert f"adapter `{folder}/adapter_model.safetensors` has changed" in shard.load(1, opened).problem
    (folder / "adapter_model.safetensors").unlink()
    assert "has no `adapter_model.safetensors`" in shard.load(1, opened).problem
    chunk = new_chunk(7, 0, 5, [0], sample=True)
    result = shard.engine.step(shard.plan(starts=[start(7, 1, prompt=[5, 9, 2, 17, 3])], chunks=[chunk]))
    assert "slot 1 has no adapter" in result.sequences[0].error.message
    save_peft(folder, pairs_of(model))
    assert shard.load(1, opened).problem == "", "the slot takes another load"


def test_a_new_stream_hears_of_no_earlier_load(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    opened = shard.loader.open(str(save_peft(tmp_path / "adapter", pairs_of(model))))
    is_packed, backend = threading.Event(), shard.loader._slots
    pack = backend.pack
    backend.pack = lambda factors: (is_packed.wait(DEADLINE_S), pack(factors))[1]  # type: ignore[method-assign]
    load = AdapterLoad(slot=1, path=opened.path, content_hash=opened.content_hash)
    shard.engine.step(shard.plan(adapter_loads=[load]))
    shard.engine.reset()
    shard.step_id = 0
    is_packed.set()
    assert shard.load(2, opened) == AdapterOutcome(slot=2)


def test_an_adapter_with_no_room_is_refused_and_the_bytes_of_others_bound_theirs(
    shard: Shard, model: TinyModel, tmp_path: Path
) -> None:
    folder = save_peft(tmp_path / "adapter", pairs_of(model))
    limits, shapes = shard.loader._limits, modules_of(model).values()
    num_bytes = shard.loader.open(str(folder)).num_bytes
    # Rows and columns of rank 4 in f32, which the kernels pad.
    least = sum(4 * 4 * sum(shape) for shape in shapes)
    assert least <= num_bytes <= limits.num_bytes / NUM_SLOTS
    shard.loader._limits = AdapterLimits(MAX_RANK, num_bytes - 1)
    with pytest.raises(InvalidArgument, match=f"takes {num_bytes} bytes, but .* only {num_bytes - 1} bytes together"):
        shard.loader.open(str(folder))


def test_a_dora_is_loaded_while_the_model_has_the_same_files(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    pairs, magnitudes = pairs_of(model), magnitudes_of(model)
    plain = shard.loader.open(str(save_peft(tmp_path / "plain", pairs)))
    opened = shard.loader.open(str(save_peft(tmp_path / "dora", pairs, magnitudes, use_dora=True)))
    assert opened.num_bytes - plain.num_bytes == 4 * sum(len(lengths) for lengths in magnitudes.values())
    assert shard.load(2, opened).problem == ""
    (tmp_path / "base" / "model.safetensors").touch()
    assert f"model `{tmp_path}/base` has changed since it was loaded" in shard.load(1, opened).problem
    assert shard.load(1, plain).problem == "", "it does not need the model"


def test_a_slot_is_emptied_without_an_outcome(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    opened = shard.loader.open(str(save_peft(tmp_path / "adapter", pairs_of(model))))
    assert shard.load(1, opened).problem == ""
    shard.engine.step(shard.plan(adapter_loads=[AdapterLoad(slot=1)]))
    chunk = new_chunk(7, 0, 5, [0], sample=True)
    result = shard.engine.step(shard.plan(starts=[start(7, 1, prompt=[5, 9, 2, 17, 3])], chunks=[chunk]))
    assert "slot 1 has no adapter" in result.sequences[0].error.message
    assert shard.load(2, opened).problem == ""
    assert shard.engine.take_transfers() is None


def test_a_source_that_is_no_adapter_is_refused(shard: Shard, model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=f"adapter `{tmp_path}/no-such` does not exist"):
        shard.loader.open(str(tmp_path / "no-such"))
    name = "model.layers.0.self_attn.q_proj"
    large = save_peft(tmp_path / "large", {name: random_pair(name, modules_of(model)[name], 9)}, r=9)
    with pytest.raises(InvalidArgument, match="has rank 9, but `--max-lora-rank` is 8"):
        shard.loader.open(str(large))

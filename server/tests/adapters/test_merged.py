"""Adapters against models with the same change merged into their files, by the definitions of PEFT and llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.adapter_files import Floats, Pairs, config_of, modules_of, random_pair, save_gguf, save_peft
from tests.models.compared import GGUF_CASES
from tests.models.tiny import CASES, TinyModel, TinyModels
from tests.weights.gguf_files import gguf_name, joined, stored_values, write_model
from trunkline_server.adapters.adapter import Adapter, load
from trunkline_server.adapters.open import open_adapter
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.gguf import GgufFile

MAX_RANK = 8
DENSE = sorted(
    case
    for case in GGUF_CASES
    if not re.search(r"experts|mixer|q_nope", " ".join(weight_shapes(config_of(TinyModel(case)))))
)
# Architectures that have Llama's weights under other names; InternLM 2 joins queries, keys and values by groups.
OTHER_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "internlm2": ("llama3", {}),
    "internlm3": ("llama_biases", {"qkv_bias": True, "bias": True}),
    "exaone": ("llama2", {"num_layers": 3, "layer_norm_epsilon": 1e-6, "activation_function": "silu"}),
}


class MergedModel(TinyModel):
    """A tiny model in whose files some matrices have changed."""

    def __init__(self, base: TinyModel, changes: dict[str, Floats]) -> None:
        super().__init__(base.case)
        self.config, self._changes = base.config, changes

    @property
    def stored_weights(self) -> dict[str, Floats]:
        weights = super().stored_weights
        return weights | {f"{name}.weight": weights[f"{name}.weight"] + by for name, by in self._changes.items()}


def no_base() -> Checkpoint:
    raise AssertionError("only DoRA needs the base model")


def changes_of(adapter: Adapter) -> dict[str, Floats]:
    """Returns what an adapter adds to each weight."""
    factors = load(adapter, no_base)
    return {name: found.scale * (dequantize(found.b) @ dequantize(found.a)) for name, found in factors.items()}


def assert_adds_up(base: Checkpoint, adapter: Adapter, merged: Checkpoint) -> set[str]:
    """Compares all weights of the base model and its adapter with merged ones; returns the names of changed weights."""
    changes = changes_of(adapter)
    changed = set()
    for name in base.names():
        before, after = dequantize(base.tensor(name)), dequantize(merged.tensor(name))
        np.testing.assert_allclose(before + changes.get(name, np.float32(0)), after, rtol=0, atol=2e-5, err_msg=name)
        changed |= {name} if (before != after).any() else set()
    assert changed == changes.keys()
    return changed


def pairs_for(shapes: dict[str, tuple[int, int]]) -> Pairs:
    """Returns pairs of ranks from 1 to 4."""
    return {name: random_pair(name, shape, 1 + index % 4) for index, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("name", [*CASES, *OTHER_NAMES])
def test_an_adapter_of_all_matrices_equals_merged_weights(name: str, tmp_path: Path) -> None:
    case, keys = OTHER_NAMES.get(name, (name, {}))
    model = TinyModel(case)
    if keys or name != case:
        model.config = model.config | keys | {"model_type": name}
    pairs = pairs_for(modules_of(model))
    ranks = {name: len(a) for name, (a, _) in pairs.items()}
    folder = save_peft(tmp_path / "adapter", pairs, rank_pattern=ranks)
    changes = {name: 8 / len(a) * (b @ a) for name, (a, b) in pairs.items()}
    merged = MergedModel(model, changes).save(tmp_path / "merged")
    base = open_checkpoint(model.save(tmp_path / "base"))
    changed = assert_adds_up(base, open_adapter(folder, base.config, MAX_RANK), open_checkpoint(merged))
    assert len(changed) >= len(pairs), "each matrix of the files is at least one weight"


@pytest.mark.parametrize("case", DENSE)
def test_a_gguf_adapter_equals_merged_weights(case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    """Whole and joined matrices, with the rows of model and adapter in the order of llama.cpp's converter."""
    model, other = tiny_model(case), TinyModel(case)
    path = write_model(model, tmp_path / "base.gguf")
    base, architecture = open_checkpoint(path), str(GgufFile(path).metadata["general.architecture"])

    def inputs_of(name: str) -> str:
        return re.sub(r"(qkv|q|k|v|gate|up)_proj", "joined", name)

    # Matrices that files may join have the same A.
    matrices = {name: weight for name, weight in model.weights.items() if ".layers." in name and weight.ndim == 2}
    a = {inputs_of(name): random_pair(inputs_of(name), weight.shape, 3)[0] for name, weight in matrices.items()}
    b = {name: random_pair(name, weight.shape, 3)[1] for name, weight in matrices.items()}
    other.weights = model.weights | {name: matrices[name] + 2 * (b[name] @ a[inputs_of(name)]) for name in matrices}
    pairs = {
        gguf_name(name, architecture): (a[inputs_of(name)], stored_values(name, rows, architecture, model.config))
        for name, rows in joined(b, architecture).items()
    }
    adapter = open_adapter(save_gguf(tmp_path / "adapter.gguf", architecture, pairs, alpha=6), base.config, MAX_RANK)
    merged = open_checkpoint(write_model(other, tmp_path / "merged.gguf"))
    assert assert_adds_up(base, adapter, merged) == matrices.keys()
    # The files of a model in the other format take it too.
    assert changes_of(open_adapter(tmp_path / "adapter.gguf", config_of(model), MAX_RANK)).keys() == matrices.keys()

"""GPT-OSS with experts in MXFP4: the groups of the file reach the kernels as they are, and bad files are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.tiny import TinyModels
from tests.weights.gguf_files import write_model
from tests.weights.mxfp4_files import mxfp4_tensors, write_mxfp4
from trunkline_server.errors import DamagedFile
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

EXPERTS = "model.layers.1.mlp.experts"
Change = Callable[[dict[str, Any]], object]


def test_groups_are_those_of_the_file_from_safetensors_and_gguf(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    ours = open_checkpoint(write_mxfp4(model, tmp_path / "folder"))
    theirs = open_checkpoint(write_model(model, tmp_path / "m.gguf", "MXFP4"))
    assert ours.names() == theirs.names()
    quantized = [name for name in ours.names() if ours.parts(name)]
    assert len(quantized) == 3 * 5 * 3
    for name in ours.names():
        tensor = ours.tensor(name)
        if name not in quantized:
            np.testing.assert_array_equal(dequantize(tensor), model.weights[name], err_msg=name)
            continue
        assert tensor.format == theirs.tensor(name).format == "MXFP4"
        assert tensor.shape == model.weights[name].shape
        expected = gguf.quantize(model.weights[name], gguf.GGMLQuantizationType.MXFP4)
        assert bytes(tensor.data) == bytes(theirs.tensor(name).data) == expected.tobytes(), name


def pop(name: str) -> Change:
    return lambda tensors: tensors.pop(f"{EXPERTS}.{name}")


def change(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    key = f"{EXPERTS}.{name}"
    return lambda tensors: tensors.update({key: np.ascontiguousarray(make(tensors[key]))})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (pop("down_proj_scales"), f"tensor `{EXPERTS}.down_proj_scales` is missing"),
        (pop("gate_up_proj_blocks"), f"tensor `{EXPERTS}.gate_up_proj_blocks` is missing"),
        (pop("gate_up_proj_bias"), f"tensor `{EXPERTS}.gate_up_proj_bias` is missing"),
        (change("down_proj_scales", lambda x: x[:, 1:]), "has shape [5, 63, 2], expected [5, 64, 2] to match"),
        (change("down_proj_scales", lambda x: x.astype(np.int32)), "is I32, expected U8"),
        (change("down_proj_blocks", lambda x: x[..., :8]), "expected [experts, rows, groups, 16]"),
        (change("down_proj_bias", lambda x: x[:4]), "has shape [4, 64], expected [5, 64] from the config"),
    ],
)
def test_a_file_with_bad_experts_is_refused(damage: Change, says: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    tensors = mxfp4_tensors(model)
    damage(tensors)
    with pytest.raises(DamagedFile, match=re.escape(says)):
        open_checkpoint(write_mxfp4(model, tmp_path, tensors))


@pytest.mark.parametrize("part", ["experts", "rows", "groups"])
def test_a_stack_of_another_size_than_the_config_is_refused(part: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    tensors = mxfp4_tensors(model)
    for kind in ("blocks", "scales"):
        cut = {"experts": np.s_[1:], "rows": np.s_[:, 2:], "groups": np.s_[:, :, 1:]}[part]
        change(f"gate_up_proj_{kind}", lambda stack, cut=cut: stack[cut])(tensors)  # type: ignore[misc]
    found = {"experts": [4, 64, 128], "rows": [5, 64, 126], "groups": [5, 32, 128]}[part]
    says = f"tensor `{EXPERTS}.gate_up_proj` has shape {found}, expected [5, 64, 128] from the config"
    with pytest.raises(DamagedFile, match=re.escape(says)):
        open_checkpoint(write_mxfp4(model, tmp_path, tensors))


@pytest.mark.parametrize("name", ["mlp.experts.gate_up_proj", "mlp.router.bias", "self_attn.sinks"])
def test_unquantised_weights_are_checked_too(name: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    folder, name = tiny_model("gpt_oss").save(tmp_path), f"model.layers.1.{name}"
    tensors = load_file(folder / "model.safetensors")
    whole = tensors.pop(name)
    for values, says in ((None, f"`{name}` is missing"), (whole[1:].copy(), f"`{name}` has shape")):
        changed = tensors if values is None else tensors | {name: values}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(DamagedFile, match=re.escape(says)):
            open_checkpoint(folder)

"""Damaged or unsupported files of models that make vectors are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from trunkline_server.errors import UserError
from trunkline_server.models.config_encoder import encoder_config
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import open_checkpoint

CONFIG: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 12, "architectures": ["BertModel"],
}  # fmt: skip
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


def write(folder: Path, config: dict[str, Any], *, drop: str = "") -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    shapes = weight_shapes(encoder_config(folder / "config.json", "bert", CONFIG))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name != drop}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def message(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_act": "relu"}, "`hidden_act` `relu`"),
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type` `relative_key`"),
        ({"is_decoder": True}, "`is_decoder`"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
        ({"num_attention_heads": 0}, "`num_heads` is 0"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "2": "b"}}, "classes 0 to 1"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 0}, "`num_labels` is"),
        ({"architectures": ["BertForSequenceClassification"]}, "tensor `pooler.dense.weight` is missing"),
        ({"max_position_embeddings": 13}, "has shape [12, 16], expected [13, 16]"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in message(write(tmp_path, CONFIG | change))


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    name = "encoder.layer.0.output.dense.bias"
    assert f"tensor `{name}` is missing" in message(write(tmp_path, CONFIG, drop=name))


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        ("{}", None, "it is not a list of modules"),
        ("[", None, "it is not JSON"),
        ("[5]", None, "it is not a list of modules"),
        ([POOLING], None, "it is missing, though `modules.json` names it"),
        ([POOLING], "[]", "it is not an object"),
        ([POOLING], {"pooling_mode_max_tokens": True}, "pools by `max`"),
        ([POOLING], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "which is not supported"),
        ([POOLING], {}, "pools by nothing"),
        ([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}], None, "the module `Dense`"),
    ],
)
def test_modules_that_cannot_be_served_are_refused(modules: Any, pooling: Any, expected: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    (tmp_path / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
    if pooling is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling/config.json").write_text(pooling if isinstance(pooling, str) else json.dumps(pooling))
    assert expected in message(tmp_path)


def test_newer_names_of_poolings_are_read(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    (tmp_path / "modules.json").write_text(json.dumps([POOLING]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "cls", "include_prompt": True}))
    pooling = open_checkpoint(tmp_path).config.pooling
    assert pooling is not None
    assert (pooling.kind, pooling.whole) == ("first", True)

"""Damaged or unsupported files of models that make vectors are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.vectors.gguf_encoders import write_encoder
from trunkline_server.errors import UserError
from trunkline_server.models.config_gguf import RopeFactors, config_from_gguf
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import open_checkpoint

CONFIG: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 12, "architectures": ["BertModel"],
}  # fmt: skip
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}

DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MEAN = {"pooling_mode_mean_tokens": True}


def write(folder: Path, config: dict[str, Any], *, drop: str = "") -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    shapes = weight_shapes(config_from_json(folder / "config.json", CONFIG))
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
        ("[" * 60_000, None, "it is not JSON"),
        ("[5]", None, "it is not a list of modules"),
        ([POOLING], None, "it is missing, though `modules.json` names it"),
        ([POOLING], "[]", "it is not an object"),
        ([POOLING], {"pooling_mode_max_tokens": True}, "pools by `max`"),
        ([POOLING], {"pooling_mode": ["cls"]}, "which is not supported"),
        ([POOLING], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "which is not supported"),
        ([POOLING], {}, "pools by nothing"),
        ([DENSE], None, "the module `Dense` in this place"),
        ([POOLING, POOLING], MEAN, "the module `Pooling` in this place"),
        (
            [POOLING, {"type": "sentence_transformers.models.Normalize"}, DENSE],
            MEAN,
            "the module `Dense` in this place",
        ),
        ([POOLING, {"type": "pylate.models.Other"}], MEAN, "the module `Other`, which is not supported"),
        ([POOLING | {"path": "../1_Pooling"}], MEAN, "which is not a plain folder name"),
        ([POOLING, DENSE], MEAN, "it is missing, though `modules.json` names it"),
        ([POOLING] * 17, MEAN, "it has 17 modules, the limit is 16"),
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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "`torch.nn.modules.activation.ReLU`"),
        ({"out_features": 0}, "`out_features`"),
        ({"out_features": 5}, "has shape [4, 16], expected [5, 16]"),
        ({"bias": False, "use_residual": True}, "`use_residual`"),
        ({"module_input_name": "token_embeddings"}, "another value than `sentence_embedding`"),
        ({"bias": True}, "tensor `2_Dense/linear.bias` is missing"),
    ],
)
def test_a_dense_module_that_cannot_be_served_is_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    (tmp_path / "modules.json").write_text(json.dumps([POOLING, DENSE]))
    config = {"in_features": 16, "out_features": 4, "bias": False} | change
    for place, values in (("1_Pooling", MEAN), ("2_Dense", config)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(values))
    safetensors.numpy.save_file(
        {"linear.weight": np.zeros((4, 16), np.float32)}, tmp_path / "2_Dense/model.safetensors"
    )
    assert expected in message(tmp_path)


def test_missing_weights_of_a_dense_module_are_named(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    (tmp_path / "modules.json").write_text(json.dumps([POOLING, DENSE]))
    for place, values in (("1_Pooling", MEAN), ("2_Dense", {"in_features": 16, "out_features": 4})):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(values))
    assert "2_Dense/model.safetensors` is damaged: it is missing" in message(tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"local_attention": -4}, "the sliding window is"),
        ({"hidden_activation": "relu"}, "`hidden_activation` `relu`"),
        ({"classifier_bias": True}, "`classifier_bias`"),
        ({"layer_types": ["full_attention", "other"]}, "`layer_types`"),
        ({"global_attn_every_n_layers": 0}, "`global_attn_every_n_layers`"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope scaling"),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"},
            "`classifier_pooling`",
        ),
    ],
)
def test_a_modernbert_that_cannot_be_served_is_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "modernbert", "architectures": ["ModernBertModel"], "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    safetensors.numpy.save_file({"any": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert expected in message(tmp_path)


@pytest.mark.parametrize(
    ("change", "score", "expected"),
    [
        ({}, {"true_token_id": 20}, "an answer's token id is not one of 20"),
        ({}, {"true_token_id": 1, "false_token_id": -1}, "an answer's token id is not one of 20"),
        ({}, {"false_token_id": 1}, "`true_token_id`"),
        ({}, {"true_token_id": 1, "module_input_name": "logits"}, "`module_input_name` `logits`"),
        ({"classifier_from_token": ["no", "yes"]}, None, "`no` or `yes` is not one of its tokens"),
        ({"classifier_from_token": "no"}, None, "is not a list of two tokens"),
    ],
)
def test_answers_that_cannot_be_scored_are_refused(
    change: dict[str, Any], score: dict[str, Any] | None, expected: str, tmp_path: Path
) -> None:
    kind = "ForCausalLM" if score else "ForSequenceClassification"
    config = {**CONFIG, "model_type": "qwen3", "architectures": [f"Qwen3{kind}"]} | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"yes": 1}}}))
    safetensors.numpy.save_file({"any": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    if score:
        modules = [{"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore"}]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_LogitScore").mkdir()
        (tmp_path / "1_LogitScore/config.json").write_text(json.dumps(score))
    assert expected in message(tmp_path)


BERT_IN_GGUF: dict[str, Any] = {
    "general.architecture": "bert", "bert.block_count": 1, "bert.embedding_length": 16, "bert.feed_forward_length": 24,
    "bert.attention.head_count": 2, "bert.attention.layer_norm_epsilon": 1e-12, "bert.context_length": 12,
    "bert.pooling_type": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "rows", "expected"),
    [
        ({"bert.attention.causal": True}, {}, "`attention.causal`"),
        ({"bert.embedding_length": 0}, {}, "`hidden_size` is 0"),
        ({"bert.block_count": 1 << 40}, {}, "`num_layers` is 1099511627776"),
        ({"bert.context_length": "many"}, {}, "`bert.context_length`"),
        ({"bert.pooling_type": 4}, {}, "`cls.output.weight` has no rows"),
        ({"bert.pooling_type": 4}, {"cls.output.weight": 5000}, "`cls.output.weight` has 5000 rows"),
        ({}, {"token_embd.weight": None}, "`token_embd.weight` is missing"),
    ],
)
def test_gguf_metadata_that_cannot_be_served_is_refused(
    metadata: dict[str, Any], rows: dict[str, int | None], expected: str
) -> None:
    rows = {"token_embd.weight": 20, "token_types.weight": 2} | rows
    with pytest.raises(UserError) as caught:
        config_from_gguf(Path("m.gguf"), BERT_IN_GGUF | metadata, num_rows=rows.get, rope_factors=RopeFactors())
    assert expected in str(caught.value)


def test_a_gguf_encoder_without_a_weight_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [], "model": {"vocab": {name: id for id, name in enumerate(SPECIAL)}}})
    )
    path = write_encoder(tmp_path, tmp_path / "model.gguf", "rank")
    assert "`cls.output.weight` has no rows" in message(path)
    path = write_encoder(tmp_path, tmp_path / "model.gguf", "mean", leave_out="blk.0.ffn_up.bias")
    assert "tensor `blk.0.ffn_up.bias` is missing" in message(path)

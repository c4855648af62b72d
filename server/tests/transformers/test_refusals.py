"""The transformers backend refuses by name, before the server is ready, models that it cannot serve."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.transformers import tiny
from transformers import AttentionInterface, PretrainedConfig
from trunkline_server.backends import registry
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.backends.transformers.attention import NAME, NotSupported, PagedAttention
from trunkline_server.backends.transformers.backend import TransformersBackend
from trunkline_server.backends.transformers.folder import Folder
from trunkline_server.errors import (
    BackendUnavailable,
    DamagedFile,
    DoesNotFit,
    InvalidArgument,
    ModelNotFound,
    UnsupportedArchitecture,
    UnsupportedFormat,
    UserError,
)
from trunkline_server.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("stablelm", tmp_path_factory.mktemp("stablelm"))


def write_config(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"model_type": "mamba"},
            "`mamba` .*, which keeps a recurrent state, is not supported; hint: supported: decod",
        ),
        ({"model_type": "bart", "is_encoder_decoder": True}, "`bart` .*, which has an encoder,"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "`gpt2` .*, which has an encoder,"),
        (
            {"model_type": "lfm2", "layer_types": ["conv"], "num_hidden_layers": 1},
            "`lfm2` .*, which has layers of type `conv`,",
        ),
        (
            {"model_type": "t5"},
            r"architecture `t5` of .* in transformers [\d.]+ is not supported; hint: supported: its",
        ),
    ],
)
def test_an_architecture_is_refused_before_weights_are_read(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match=says):
        TransformersBackend(write_config(tmp_path, **values))


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("bloom", "does not route attention through transformers' `AttentionInterface`"),
        ("bert", "computes another result token by token than for a text as a whole"),
    ],
)
def test_a_model_that_cannot_be_computed_in_pieces_is_refused(case: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match=f"architecture `{case}` of .*, which {says},"):
        TransformersBackend(tiny.save(case, tmp_path))


def test_a_config_without_a_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="which does not say how many positions it has"):
        _ = Folder(tmp_path, "own", PretrainedConfig(), []).context


def test_code_in_a_folder_never_runs(tmp_path: Path) -> None:
    (tmp_path / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    with pytest.raises(UnsupportedArchitecture, match="architecture `own`"):
        TransformersBackend(write_config(tmp_path, model_type="own", auto_map=auto_map))
    tiny.save("stablelm", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    TransformersBackend(write_config(tmp_path, **values, auto_map=auto_map))
    assert not (tmp_path / "ran").exists()


def test_an_argument_of_attention_that_is_not_known_is_refused() -> None:
    attention = PagedAttention(is_packed=False)
    states = torch.zeros(1, 1, 1, 8)
    compute = AttentionInterface()[NAME]
    compute(attention, states, states, states, None, sliding_window=5, is_causal=True, block_indices=None)
    with pytest.raises(NotSupported, match="passes `block_indices`, `indices` to attention"):
        compute(attention, states, states, states, None, indices=states, block_indices=states)


def test_a_bias_for_one_text_is_refused_for_rows_of_several() -> None:
    attention = PagedAttention(is_packed=True)
    states = torch.zeros(1, 1, 1, 8)
    with pytest.raises(NotSupported, match="makes a bias for one text"):
        AttentionInterface()[NAME](attention, states, states, states, None, position_bias=states)


def test_damaged_and_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no `config\.json`"):
        TransformersBackend(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedFormat, match="is not a folder, which the transformers backend needs"):
        TransformersBackend(tmp_path / "model.gguf")
    values = json.loads((folder / "config.json").read_text())
    with pytest.raises(UnsupportedFormat, match=r"is quantised \(`quantization_config`\)"):
        TransformersBackend(write_config(tmp_path, **values, quantization_config={"quant_method": "gptq"}))
    with pytest.raises(DamagedFile, match=r"config\.json` is damaged: transformers cannot read it: .*hidden_size"):
        TransformersBackend(write_config(tmp_path, **{**values, "hidden_size": "many"}))
    write_config(tmp_path, **values)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DamagedFile, match=r"tensor `model\.layers\.1\.mlp\.up_proj\.weight` is missing"):
        TransformersBackend(tmp_path)
    shutil.copy(folder / "model.safetensors", tmp_path)
    write_config(tmp_path, **{**values, "hidden_size": 128})
    with pytest.raises(DamagedFile, match="transformers cannot load it"):
        TransformersBackend(tmp_path)


def test_a_pool_that_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(DoesNotFit, match="a KV pool of 4000000000 tokens takes 1953125 MiB"):
        TransformersBackend(folder, max_batch_total_tokens=4_000_000_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"kv_disk": StoreOptions(path=Path("kv"), max_bytes=1 << 20)},
            "`--kv-disk-path` is set, but the transformers backend",
        ),
        ({"kv_host_bytes": 1 << 20}, "`--kv-host-size` is set, but the transformers backend"),
        ({"quantize": "int8"}, "`--quantize` is int8, but the transformers backend does not quantise weights"),
        ({"max_loras": 4}, "adapters are on, but the transformers backend does not support them"),
        ({"speculative_model": Path("draft")}, "`--speculative-model` is set, but the transformers backend"),
    ],
)
def test_options_of_other_backends_are_refused(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        registry.build_transformers(folder, registry.BackendOptions(**options))


def test_a_missing_package_is_named_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("trunkline_server.backends.transformers")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackendUnavailable, match=r"needs transformers; hint: run `pip .* install torch transformers`"):
        registry.build_transformers(folder, registry.BackendOptions())


def test_other_backends_point_to_this_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"architecture `gpt2` .* hint: supported: .*; or try `--backend transformers`"):
        open_checkpoint(write_config(tmp_path, model_type="gpt2"))

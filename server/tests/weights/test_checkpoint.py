"""Checkpoints: one interface over both formats; incomplete ones are refused, and fingerprints tell them apart."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.models.tiny import CASES, TinyModels
from tests.weights.gguf_files import permute, write_model
from trunkline_server.backends.cpu.weight_cache import fingerprint_of
from trunkline_server.errors import (
    DamagedFile,
    ModelNotFound,
    TrunklineError,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from trunkline_server.models.registry import ARCHITECTURES
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import FORMATS, EncodedTensor, Tensor


@pytest.mark.parametrize(
    "case",
    [
        "llama_biases",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3",
        "gpt_oss",
        "granitemoe",
        "mixtral",
        "phi3",
        "nemotron",
        "seed_oss",
    ],
)
def test_both_formats_give_the_weights_of_the_model(case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model(case)
    weights = {"lm_head.weight": model.weights["model.embed_tokens.weight"], **model.weights}
    for checkpoint in (open_checkpoint(model.folder), open_checkpoint(write_model(model, tmp_path / "m.gguf"))):
        assert set(checkpoint.names()) == weights.keys()
        for name in checkpoint.names():
            # Some norms add 1 to their weight.
            offset = np.float32(1.0 if case.startswith(("gemma", "nemotron")) and name.endswith("norm.weight") else 0.0)
            expected = weights[name] + offset
            np.testing.assert_array_equal(dequantize(checkpoint.tensor(name)), expected, err_msg=name)


@pytest.mark.parametrize("divides_heads", [False, True])
@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3"])
def test_every_layout_of_latent_attention_gives_the_weights_of_the_model(
    case: str, divides_heads: bool, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model(case)
    of_folder = open_checkpoint(model.folder)
    of_gguf = open_checkpoint(write_model(model, tmp_path / "m.gguf", divides_heads=divides_heads))
    assert of_folder.config.attention.latent == of_gguf.config.attention.latent
    for name in of_folder.names():
        for checkpoint in (of_folder, of_gguf):
            # Rows in the order of the file, like those that the model was made with.
            stored = replace(checkpoint.tensor(name), interleaved_heads=None)
            np.testing.assert_array_equal(dequantize(stored), model.weights[name], err_msg=name)


@pytest.mark.parametrize("name", ["kv_b_proj", "kv_a_proj_with_mqa", "q_proj"])
def test_a_joined_projection_of_another_shape_is_refused(name: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("deepseek_v2")
    tensor = f"model.layers.2.self_attn.{name}.weight"
    weights = model.stored_weights
    rows = len(weights[tensor])
    weights[tensor] = weights[tensor][1:]
    shutil.copy(model.folder / "config.json", tmp_path)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DamagedFile, match=rf"`{tensor}` has shape \[{rows - 1}, \d+\], expected \[{rows}, "):
        open_checkpoint(tmp_path)


def test_quantised_keys_are_transposed_in_half_precision(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("deepseek_v2")
    checkpoint = open_checkpoint(write_model(model, tmp_path / "m.gguf", "Q8_0", divides_heads=False))
    keys, values = (checkpoint.tensor(f"model.layers.1.self_attn.{part}_up.3.weight") for part in "kv")
    assert (keys.format, values.format) == ("F16", "Q8_0")
    for tensor in (keys, values):
        np.testing.assert_allclose(dequantize(tensor), model.weights[tensor.name], rtol=0, atol=0.01)


def test_both_formats_give_the_same_config(tiny_model: TinyModels, tmp_path: Path) -> None:
    of_json = {
        "llama_yarn_mscale",
        "smollm3_marked",
        "llama3",
        "llama_yarn",
        "qwen2_window",
        "qwen3_window",
        "gemma3_shallow",
        "qwen3_moe_mixed",
        "olmo3",
        "glm",
        "deepseek_v2",
        "gpt_oss",
        "gpt_oss_limited",
        "granitehybrid_attention",
        "qwen3_next",
    }
    for case in CASES.keys() - of_json:
        model = tiny_model(case)
        ours = open_checkpoint(model.folder).config
        theirs = open_checkpoint(write_model(model, tmp_path / f"{case}.gguf")).config
        found = theirs.fields()
        different = {key: (value, found[key]) for key, value in ours.fields().items() if value != found[key]}
        # GGUF has one name for some architectures, and stores f32.
        renamed = {"mistral": "llama", "deepseek_v3": "deepseek_v2"}
        assert theirs.architecture == renamed.get(ours.architecture, ours.architecture)
        different.pop("architecture", None)
        different.pop("norms.eps", None)
        assert theirs.norms.eps == pytest.approx(ours.norms.eps, rel=1e-7)
        if "positions.scaling" in different:
            scaling, other = different.pop("positions.scaling")
            assert (other.attention_factor or 1.0) == pytest.approx(scaling.attention_factor or 1.0, rel=1e-6)
            assert replace(other, attention_factor=scaling.attention_factor) == scaling
        assert different == {}, case


@pytest.mark.parametrize("case", ["smollm2", "llama2"])
def test_a_tied_head_is_the_embedding(case: str, tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    stored = "model.embed_tokens.weight" if checkpoint.config.tie_word_embeddings else "lm_head.weight"
    assert checkpoint.config.tie_word_embeddings == (case == "smollm2")
    assert checkpoint.tensor("lm_head.weight").name == stored


@pytest.mark.parametrize("format_name", FORMATS)
def test_interleaved_rows_are_put_in_order_in_every_format(format_name: str) -> None:
    num_heads, head_size, columns = 3, 8, 256
    row_bytes = columns // FORMATS[format_name].group_elements * FORMATS[format_name].group_bytes
    # Scales of random bits would sometimes be NaN, which is equal to nothing.
    rows = np.random.default_rng(4).integers(0, 60, (num_heads * head_size, row_bytes), dtype=np.uint8)
    shape = (num_heads * head_size, columns)
    plain = Tensor("w", format_name, shape, rows.reshape(-1))
    stored = Tensor(
        "w", format_name, shape, permute(rows, num_heads).reshape(-1), interleaved_heads=(head_size, head_size)
    )
    np.testing.assert_array_equal(dequantize(stored), dequantize(plain))


def test_rotated_rows_alone_are_put_in_order() -> None:
    values = np.arange(12, dtype=np.float32)
    stored = Tensor("w", "F32", (12,), values.view(np.uint8), interleaved_heads=(6, 4))
    assert dequantize(stored).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def test_fingerprint_covers_every_byte(tiny_model: TinyModels, tmp_path: Path) -> None:
    path = write_model(tiny_model("llama2"), tmp_path / "m.gguf")
    original = path.read_bytes()
    expected = open_checkpoint(path).fingerprint()
    shutil.copy(path, tmp_path / "copy.gguf")
    assert open_checkpoint(tmp_path / "copy.gguf").fingerprint() == expected
    data = len(original) // 2  # in the data section, since the header of such a small model ends earlier
    seen = {expected}
    positions = [data, data + 4096, len(original) - 1, *np.random.default_rng(6).integers(data, len(original), 40)]
    for position in {int(position) for position in positions}:
        changed = bytearray(original)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        seen.add(open_checkpoint(path).fingerprint())
    assert len(seen) == 1 + len({int(position) for position in positions})
    swapped = bytearray(original)
    swapped[data : data + 8], swapped[data + 8 : data + 16] = original[data + 8 : data + 16], original[data : data + 8]
    path.write_bytes(swapped)
    assert open_checkpoint(path).fingerprint() not in seen


def test_the_kernels_give_the_fingerprint_of_numpy(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    for path in (model.folder, write_model(model, tmp_path / "m.gguf")):
        checkpoint = open_checkpoint(path)
        assert fingerprint_of(checkpoint) == checkpoint.fingerprint()


def test_fingerprint_of_a_folder_covers_weights_and_config(tiny_model: TinyModels, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("qwen3").folder, tmp_path / "m"))
    expected = open_checkpoint(folder).fingerprint()
    assert len(expected) == 32
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert open_checkpoint(folder).fingerprint() != expected
    (folder / "config.json").write_text(json.dumps(config))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert open_checkpoint(folder).fingerprint() != expected


def test_sharded_folders_are_opened(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("llama2")
    model.save_in_shards(tmp_path, 3)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    sharded, whole = open_checkpoint(tmp_path), open_checkpoint(model.folder)
    for name in whole.names():
        np.testing.assert_array_equal(sharded.tensor(name).data, whole.tensor(name).data)


def test_a_divided_gguf_model_is_opened_by_any_of_its_files(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    whole = open_checkpoint(write_model(model, tmp_path / "whole.gguf"))
    write_model(model, tmp_path / "m.gguf", tensors_per_file=15)
    files = sorted(tmp_path.glob("m-*.gguf"))
    assert [file.name for file in files] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    identities = set()
    for file in files:
        checkpoint = open_checkpoint(file)
        assert checkpoint.config == whole.config
        for name in whole.names():
            np.testing.assert_array_equal(dequantize(checkpoint.tensor(name)), dequantize(whole.tensor(name)))
        identities.add((checkpoint.identity().digest, checkpoint.fingerprint()))
    assert len(identities) == 1
    files[0].rename(tmp_path / "first.gguf")
    with pytest.raises(ModelNotFound, match=r"m-00001-of-00003\.gguf` is missing, one of 3 files"):
        open_checkpoint(files[1])
    with pytest.raises(DamagedFile, match=r"`split\.count` is 3, but the name is not that of one of 3 files"):
        open_checkpoint(tmp_path / "first.gguf")
    files[1].rename(files[0])
    files[0].with_name("first.gguf").rename(files[1])
    with pytest.raises(DamagedFile, match="says that it is number 1 of 3 files"):
        open_checkpoint(files[2])


def test_a_missing_or_misshapen_weight_is_named(tiny_model: TinyModels, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("llama2").folder, tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(DamagedFile, match=r"tensor `model\.layers\.3\.input_layernorm\.weight` is missing"):
        open_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 104}))
    with pytest.raises(DamagedFile, match=r"gate_proj\.weight` has shape \[96, 64\], expected \[104, 64\]"):
        open_checkpoint(folder)


def test_rates_that_are_no_rates_are_refused(tiny_model: TinyModels, tmp_path: Path) -> None:
    path = write_model(tiny_model("granitehybrid"), tmp_path / "m.gguf")
    name = "model.layers.0.mixer.rate.weight"
    rates = tiny_model("granitehybrid").weights[name]
    np.testing.assert_allclose(dequantize(open_checkpoint(path).tensor(name)), rates, atol=1e-6)
    stored = (-np.exp(rates)).tobytes()
    for wrong in (0.5, 0.0, -np.inf, np.nan):
        damaged = path.read_bytes().replace(stored, np.float32(wrong).tobytes() + stored[4:])
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        with pytest.raises(DamagedFile, match=r"`blk\.0\.ssm_a` has elements that are not negative numbers"):
            open_checkpoint(tmp_path / "damaged.gguf").tensor(name)


def test_paths_without_a_model_have_distinct_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(ModelNotFound, match=r"no `config\.json`"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DamagedFile, match="not valid JSON"):
        open_checkpoint(tmp_path)
    (tmp_path / "m.safetensors").write_bytes(b"x")
    with pytest.raises(UnsupportedFormat, match="without a config"):
        open_checkpoint(tmp_path / "m.safetensors")


def test_a_folder_of_pickles_is_refused_unread(tiny_model: TinyModels, tmp_path: Path) -> None:
    shutil.copy(tiny_model("llama2").folder / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelNotFound, match="pickle files are never read"):
        open_checkpoint(tmp_path)


def test_an_unknown_architecture_is_named_with_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedArchitecture) as caught:
        open_checkpoint(tmp_path)
    assert "architecture `mamba`" in str(caught.value)
    assert f"hint: supported: {', '.join(sorted(ARCHITECTURES))}" in str(caught.value)
    assert isinstance(caught.value, TrunklineError)
    assert caught.value.code == "unsupported_architecture"


def test_both_ways_in_which_gguf_states_the_delta_rule(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("qwen3_next")
    expected = open_checkpoint(model.folder)
    for is_new in (True, False):
        found = open_checkpoint(write_model(model, tmp_path / f"{is_new}.gguf", divides_heads=is_new))
        assert found.config.recurrent == expected.config.recurrent
        for name in expected.names():
            np.testing.assert_allclose(
                dequantize(found.tensor(name)), dequantize(expected.tensor(name)), rtol=1e-6, err_msg=name
            )


@pytest.mark.parametrize(
    ("case", "stored_as", "copied"),
    [
        ("deepseek_v2", "", {"k_up", "q_nope", "q_rope"}),
        ("deepseek_v2", "F32", {"k_up", "q_nope", "q_rope"}),
        ("deepseek_v2", "Q8_0", {"k_up", "q_nope", "q_rope"}),
        ("gpt_oss", "", {"experts"}),
        ("qwen3_next", "", {"q_proj", "gate_proj", "qkv_proj", "strength_proj", "step_proj"}),
        ("qwen3_next", "BF16", {"q_proj", "gate_proj", "qkv_proj", "strength_proj", "step_proj"}),
    ],
)
def test_weights_that_are_copied_are_read_only_when_they_are_needed(
    case: str, stored_as: str, copied: set[str], tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model(case)
    path = write_model(model, tmp_path / "m.gguf", stored_as, divides_heads=False) if stored_as else model.folder
    checkpoint = open_checkpoint(path)
    late = set()
    for name in checkpoint.names():
        weight, tensor = checkpoint.encoded(name), checkpoint.tensor(name)
        assert (weight.name, weight.format, weight.shape) == (tensor.name, tensor.format, tensor.shape)
        assert weight.interleaved_heads == tensor.interleaved_heads
        if isinstance(weight, EncodedTensor):
            assert bytes(weight.read().data) == bytes(tensor.data)
            late.add(name.split(".")[4])
    assert late == copied

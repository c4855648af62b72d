"""`trunkline quantize`: the file holds the numbers of `--quantize`, and what GGUF cannot hold is refused."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.models.tiny import CASES, TinyModels
from tests.weights.gguf_files import write_model
from trunkline_server.cli import main
from trunkline_server.export.config_keys import as_written
from trunkline_server.export.tokenizer_keys import NAMES
from trunkline_server.models.config import ModelConfig, RopeScaling
from trunkline_server.models.rope import rope
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.quantize import QuantizedCheckpoint

DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}
# Models that cannot be written from safetensors.
REFUSED = {
    "deepseek_v2", "deepseek_v2_groups", "deepseek_v3", "gemma3_shallow", "glm", "gpt_oss_limited", "granitehybrid",
    "granitehybrid_attention", "granitemoehybrid", "lfm2", "lfm2_moe", "llama_yarn_mscale", "phi3_longrope",
    "qwen2_window", "qwen3_moe_mixed", "qwen3_next", "qwen3_window", "smollm3_marked",
}  # fmt: skip


def with_tokenizer(folder: Path, target: Path, **changes: Any) -> Path:
    """Copies a model, with a byte-level tokenizer beside it."""
    shutil.copytree(folder, target)
    vocab = {chr(33 + index): index for index in range(90)} | {"ab": 90}
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
        "pre_tokenizer": DIGITS,
        "added_tokens": [{"id": 91, "content": "<end>", "special": True}, {"id": 92, "content": "<u>"}],
    } | changes
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"eos_token": {"content": "<end>"}, "chat_template": "{{ messages }}", "add_bos_token": False}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def comparable(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields that two files must have in common; numbers in GGUF have 32 bits."""
    values = as_written(config).fields() | {"positions.scaling": RopeScaling()}
    return {name: np.float32(value) if isinstance(value, float) else value for name, value in values.items()}


def assert_equal(found: Checkpoint, expected: Checkpoint) -> None:
    """Compares configs, up to the way in which the scaling of rotary frequencies is stated, and all weights."""
    assert comparable(found.config) == comparable(expected.config)
    np.testing.assert_allclose(rope(found.config).inv_freq, rope(expected.config).inv_freq, rtol=1e-6)
    assert found.names() == expected.names()
    for name in expected.names():
        assert np.array_equal(dequantize(found.tensor(name)), dequantize(expected.tensor(name))), name


@pytest.mark.parametrize("case", list(CASES))
def test_a_file_from_safetensors_holds_the_model_or_nothing_is_written(
    case: str, tiny_model: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = with_tokenizer(tiny_model(case).folder, tmp_path / "m"), tmp_path / "m.gguf"
    if case in REFUSED:
        assert main(["quantize", str(folder), str(out)]) == 2
        assert "cannot be written as GGUF" in (error := capsys.readouterr().err)
        assert "hint: convert the model with llama.cpp's convert_hf_to_gguf.py" in error
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
        return
    assert main(["quantize", str(folder), str(out), "--type", "int4"]) == 0
    assert_equal(open_checkpoint(out), QuantizedCheckpoint(open_checkpoint(folder), "int4"))


@pytest.mark.parametrize(
    ("case", "tensors_per_file"), [("qwen3_moe", 0), ("granitehybrid", 0), ("deepseek_v2", 0), ("llama3", 5)]
)
def test_a_file_from_gguf_keeps_everything_but_the_matrices(
    case: str, tensors_per_file: int, tiny_model: TinyModels, tmp_path: Path
) -> None:
    write_model(tiny_model(case), tmp_path / "m.gguf", "BF16", tensors_per_file=tensors_per_file)
    source, out = next(tmp_path.glob("m*.gguf")), tmp_path / "q.gguf"
    assert main(["quantize", str(source), str(out)]) == 0
    before, after = open_checkpoint(source), open_checkpoint(out)
    assert after.config == before.config
    stored = {info.format for file in after.files for info in file.tensors.values()}
    assert stored == {"F32", "Q8_0"}
    for name in before.names():
        plain, found = dequantize(before.tensor(name)), dequantize(after.tensor(name))
        assert np.abs(found - plain).max() <= np.abs(plain).max() / 120, name
    theirs, ours = (gguf.GGUFReader(path) for path in (source, out))
    changed = {"general.file_type", "general.quantization_version", "GGUF.kv_count", "GGUF.tensor_count"}
    for name, field in theirs.fields.items():
        if name not in changed and not name.startswith("split."):
            assert ours.fields[name].contents() == field.contents(), name


def test_tokenizer_and_template_are_those_of_the_folder(tiny_model: TinyModels, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    around = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<end>"}}]}
    folder = with_tokenizer(tiny_model("llama2").folder, tmp_path / "m", post_processor=around)
    assert main(["quantize", str(folder), str(out)]) == 0
    fields = {name: field.contents() for name, field in gguf.GGUFReader(out).fields.items()}
    texts, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert (texts[:2], texts[90:94], len(texts)) == (["!", '"'], ["ab", "<end>", "<u>", "[PAD93]"], 160)
    assert (kinds[0], kinds[90:94]) == (1, [1, 3, 4, 5])
    assert fields["tokenizer.ggml.merges"] == ["a b"]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "smollm")
    assert fields["tokenizer.ggml.eos_token_id"] == 91
    assert (fields["tokenizer.ggml.add_bos_token"], fields["tokenizer.ggml.add_eos_token"]) == (False, True)
    assert fields["tokenizer.chat_template"] == "{{ messages }}"
    assert fields["general.file_type"] == 7


def test_names_of_pre_tokenizers_mean_the_same_to_the_router() -> None:
    source = (Path(__file__).parents[3] / "router/text/src/tokenizer/pre.rs").read_text()
    expressions = dict(re.findall(r'^const (\w+): &str = r"(.+)";$', source, re.MULTILINE))
    for (steps, ignores_merges, composes), name in NAMES.items():
        (arm,) = re.findall(rf'"{re.escape(name)}"[^=]*=>\s*(.+?)\n            (?:"|other)', source, re.DOTALL)
        assert ("ignore_merges: true" in arm, "compose: true" in arm) == (ignores_merges, composes), name
        if match := re.search(r"Expression\((\w+)\)", arm):
            assert steps == (expressions[match[1]],), name
        else:
            assert ("DigitsThenGpt2" in arm) == (steps == ("Digits", "ByteLevel")), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "has a tokenizer that is not byte-level BPE"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "splits text in a way for which GGUF has no name"),
        ({"normalizer": {"type": "Lowercase"}}, "splits text in a way for which GGUF has no name"),
        ({"model": {"type": "BPE", "vocab": {"a": 160}, "merges": []}}, "its tokens or merges have another form"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "its tokens or merges have another form"),
        ({"added_tokens": [{"id": 3}]}, "its tokens or merges have another form"),
    ],
)
def test_other_tokenizers_are_refused(
    changes: dict[str, Any], message: str, tiny_model: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_tokenizer(tiny_model("llama2").folder, tmp_path / "m", **changes)
    assert main(["quantize", str(folder), str(tmp_path / "m.gguf")]) == 2
    assert message in capsys.readouterr().err


def test_bad_arguments_write_nothing(
    tiny_model: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_tokenizer(tiny_model("llama2").folder, tmp_path / "m")
    (tmp_path / "old.gguf").write_text("kept")
    done = write_model(tiny_model("llama2"), tmp_path / "done.gguf", "Q8_0")
    for model, out, message in [
        (folder, "m.bin", "is not the name of a GGUF file; hint: end it with `.gguf`"),
        (folder, "old.gguf", "exists; hint: choose another name"),
        (folder, "none/m.gguf", "does not exist; hint: make it first"),
        (done, "m.gguf", "is quantised already"),
    ]:
        assert main(["quantize", str(model), str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    assert main(["quantize", str(folder), str(tmp_path / "m.gguf")]) == 2
    assert "but the disk of its folder has 0 MiB left" in capsys.readouterr().err
    assert (tmp_path / "old.gguf").read_text() == "kept"
    assert not (tmp_path / "m.gguf").exists()


def test_a_number_that_is_not_finite_leaves_no_file(
    tiny_model: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = copy.copy(tiny_model("llama2"))
    model.weights = {**model.weights, "model.layers.1.mlp.up_proj.weight": np.full((96, 64), np.nan, np.float32)}
    path = write_model(model, tmp_path / "bad.gguf", "BF16")
    assert main(["quantize", str(path), str(tmp_path / "m.gguf")]) == 2
    assert "tensor `blk.1.ffn_up.weight` cannot be quantised: a number is not finite" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.gguf"]

"""`trunkline show`: what it says of models whose numbers are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import write_quantized
from trunkline_server import library
from trunkline_server.hub import ResolvedModel


def described(path: Path) -> dict[str, str]:
    lines = library.shown(str(path), None)
    return dict(line.split("  ", 1) for line in lines)


def test_the_embedded_model(embedded_gguf: Path) -> None:
    rows = {name: value.strip() for name, value in described(embedded_gguf).items()}
    assert rows["parameters"] == "134,515,008"
    assert rows["weights"] == "Q4_1 79 %, Q8_0 21 %, F32 0 %"
    assert rows["context"] == "8,192 tokens"
    assert rows["licence"] == "apache-2.0"
    assert rows["KV cache needs"].endswith(" MiB for 8,192 tokens")
    assert "with --quantize int4" not in rows


@pytest.mark.parametrize(
    ("readme", "licence"),
    [
        (None, None),
        ("# A model without metadata", None),
        ("---\nlicense: mit\n---\n# Model", "mit"),
        ("---\nlicense:\n- mit\n- cc-by-4.0\n---\n", "mit, cc-by-4.0"),
        ("---\nlicense: other\nlicense_name: own-terms\n---\n", "own-terms"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense: [\n---\n", "unknown, because the metadata of `README.md` is not valid YAML"),
        ("---\n- list\n---\n", "unknown, because the metadata of `README.md` is not valid YAML"),
    ],
)
def test_the_licence_is_that_of_the_readme(
    readme: str | None, licence: str | None, tiny_model: TinyModels, tmp_path: Path
) -> None:
    shutil.copytree(tiny_model("llama2").folder, tmp_path, dirs_exist_ok=True)
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    assert described(tmp_path).get("licence", "").strip() == (licence or "")


def test_a_file_in_a_folder_of_a_repository_has_its_readme() -> None:
    revision = "1" * 40
    snapshot = Path("/cache/snapshots") / revision
    assert ResolvedModel(snapshot / "Q8_0/m.gguf", "org/name", revision).card == snapshot / "README.md"
    assert ResolvedModel(snapshot, "org/name", revision).card == snapshot / "README.md"


def test_recurrent_layers_need_states(tiny_model: TinyModels) -> None:
    assert described(tiny_model("lfm2").folder)["states need"].strip() == "1 MiB for each running sequence"
    assert "states need" not in described(tiny_model("llama3").folder)


@pytest.mark.parametrize("case", ["llama3", "qwen2_moe"])
def test_an_unquantised_model_says_what_quantising_saves(case: str, tiny_model: TinyModels) -> None:
    model = tiny_model(case)
    rows = described(model.folder)
    assert int(rows["parameters"].strip().replace(",", "")) == sum(weight.size for weight in model.weights.values())
    assert rows["weights"].strip() == "F32 100 %"
    assert {"with --quantize int8", "with --quantize int4"} <= rows.keys()


@pytest.mark.parametrize(
    ("case", "method", "is_decoded"),
    [
        ("gptq", "GPTQ, 4 bits", False),
        ("fp8_dynamic", "FP8", True),
        ("bitsandbytes_4", "bitsandbytes, 4 bits", True),
    ],
)
def test_a_quantised_checkpoint_names_its_method(
    case: str, method: str, is_decoded: bool, tiny_model: TinyModels, tmp_path: Path
) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, case)
    rows = described(tmp_path)
    assert rows["weights"].strip() == method
    # Weights that would become BF16 can be quantised instead.
    assert ("with --quantize int4" in rows) == is_decoded


def test_a_file_of_two_revisions_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout is the Hub's: revisions are folders of links to files that are named by their content."""
    repo = tmp_path / "models--org--name"
    for folder in ("blobs", "refs", "snapshots"):
        (repo / folder).mkdir(parents=True)
    sizes = {"a": 3 << 20, "b": 2 << 20}
    for blob, size in sizes.items():
        (repo / "blobs" / blob).write_bytes(bytes(size))
    for commit, files in {"1" * 40: {"m-Q8_0.gguf": "a"}, "2" * 40: {"m-Q8_0.gguf": "a", "m-Q4_0.gguf": "b"}}.items():
        (repo / "snapshots" / commit).mkdir()
        for name, blob in files.items():
            (repo / "snapshots" / commit / name).symlink_to(repo / "blobs" / blob)
    import huggingface_hub

    cache = huggingface_hub.scan_cache_dir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: cache)
    _, *lines = library.listed()
    assert [line.split()[:3] for line in lines] == [
        ["org/name:m-Q4_0.gguf", "2", "MiB"],
        ["org/name:m-Q8_0.gguf", "3", "MiB"],
    ]

"""`fit` of models on the Hub: the numbers of a local file, from headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.fake_hub import Hub, Repository, serve
from tests.hub.test_hub_download import Resolve, resolve, resolver
from tests.models.tiny import TinyModels
from tests.weights.gguf_files import write_model
from tests.weights.quantized_files import write_quantized

__all__ = ["resolve", "resolver"]
EMBEDDED_HEADER_BYTES = 2 << 20
Fit = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def files(tiny_model: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns the folder of each repository."""
    made = tmp_path_factory.mktemp("made")
    tiny = tiny_model("llama3")
    many = made / "many"
    many.mkdir()
    for kind in ("F16", "Q8_0", "Q4_0"):
        write_model(tiny, many / f"tiny-{kind}.gguf", kind)
    (many / "tiny-broken.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(64))
    (many / "mmproj-F16.gguf").write_bytes(b"images")
    divided = made / "divided"
    divided.mkdir()
    write_model(tiny, divided / "tiny.gguf", "Q8_0", tensors_per_file=9)
    shards = made / "shards"
    shards.mkdir()
    tiny.save_in_shards(shards, 2)
    return {
        "many": many,
        "divided": divided,
        "shards": shards,
        "recurrent": tiny_model("qwen3_next").folder,
        "gptq": write_quantized(tiny.folder, made / "gptq", "gptq") and made / "gptq",
        "nf4": write_quantized(tiny.folder, made / "nf4", "bitsandbytes_4") and made / "nf4",
    }


@pytest.fixture
def hub(files: dict[str, Path], embedded_gguf: Path) -> Iterator[Hub]:
    def read(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    content = embedded_gguf.read_bytes()
    repositories = {f"org/{name}": Repository(read(folder)) for name, folder in files.items()}
    repositories["org/smol"] = Repository({"smol-Q4_1.gguf": content, "smol-Q4_0.gguf": content, "README.md": b"#"})
    with serve(Hub(repositories)) as hub:
        yield hub


@pytest.fixture
def fit(resolve: Resolve) -> Fit:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        ((found, output, errors),) = resolve.run(["fit", "--json", "--available", str(1 << 30), *arguments])
        assert found == code, errors
        answer: dict[str, Any] = json.loads(output)
        return answer

    return run


def sizes(entry: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in entry.items() if name.endswith("_bytes")}


@pytest.mark.parametrize("name", ["divided", "shards", "recurrent", "gptq", "nf4"])
def test_a_repository_needs_what_the_files_need(fit: Fit, files: dict[str, Path], name: str) -> None:
    remote, local = fit(f"org/{name}", "--context", "64"), fit(str(files[name]), "--context", "64")
    assert [sizes(entry) for entry in remote["models"]] == [sizes(entry) for entry in local["models"]]
    assert remote["command"].startswith(f"trunkline serve org/{name} --max-total-tokens 64 --max-batch-total-tokens ")


def test_the_best_file_that_fits_is_recommended(fit: Fit, files: dict[str, Path]) -> None:
    found = fit("org/many", "--context", "64")
    entries = {entry["model"]: entry for entry in found["models"] if "needed_bytes" in entry}
    assert entries.keys() == {f"org/many:{kind}" for kind in ("F16", "Q8_0", "Q4_0")}
    (broken,) = [entry for entry in found["models"] if "needed_bytes" not in entry]
    assert (broken["model"], broken["fits"]) == ("org/many:broken", False)
    for kind in ("F16", "Q8_0"):
        (local,) = [
            entry
            for entry in fit(str(files["many"] / f"tiny-{kind}.gguf"), "--context", "64")["models"]
            if entry["quantize"] == "none"
        ]
        assert sizes(local) == sizes(entries[f"org/many:{kind}"])
    # Files of F16 are no gain.
    assert found["recommended"]["model"] == "org/many:Q8_0"
    less = str(entries["org/many:Q8_0"]["needed_bytes"] - 1)
    assert fit("org/many", "--context", "64", "--available", less)["recommended"]["model"] == "org/many:Q4_0"
    less = str(entries["org/many:Q4_0"]["needed_bytes"] // 2)
    nothing = fit("org/many", "--context", "64", "--available", less, code=1)
    assert nothing["recommended"] is None
    assert "hint" in nothing


def test_only_headers_are_read_and_the_tokenizer_once(fit: Fit, hub: Hub, embedded_gguf: Path, tmp_path: Path) -> None:
    local = fit(str(embedded_gguf))
    hub.requests.clear()
    remote = fit("org/smol")
    assert [sizes(entry) for entry in remote["models"]] == 2 * [sizes(entry) for entry in local["models"]]
    fetched = dict.fromkeys(("smol-Q4_1.gguf", "smol-Q4_0.gguf"), 0)
    for _, path, asked in hub.requests:
        if path.endswith(".gguf"):
            assert asked is not None
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            fetched[path.rsplit("/", 1)[-1]] += last + 1 - first
    least, most = sorted(fetched.values())
    assert 0 < least < 1 << 20 <= most < 3 << 20
    assert not list((tmp_path / "home").rglob("*.gguf"))


def test_errors_name_the_repository(resolve: Resolve, hub: Hub) -> None:
    def error(*arguments: str) -> str:
        ((code, output, errors),) = resolve.run(["fit", *arguments])
        assert (code, output) == (2, "")
        return errors

    assert "the Hub has no repository `org/absent`" in error("org/absent")
    assert "no `.gguf` model that matches `Q9`" in error("org/many:Q9")
    assert "`org/many/tiny-broken.gguf` is damaged" in error("org/many:tiny-broken.gguf")
    hub.broken_status = 503
    assert "the Hub answered with status 503" in error("org/many")

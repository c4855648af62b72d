"""`resolve` against a Hub on this machine, each time in a process of its own: the library reads its variables once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.fake_hub import COMMIT, VALID_TOKEN, Hub, Repository, serve

SERVER = Path(__file__).resolve().parents[2]
SAFETENSORS_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 40,
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": b"{}",
    "consolidated.safetensors": b"a second copy of the weights",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"another format",
    "README.md": b"# model",
}
GGUF_FILES = {"README.md": b"#", "m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    repositories = {
        "org/whole": Repository(SAFETENSORS_FILES, revisions=("main", "v1.0")),
        "org/gguf": Repository(GGUF_FILES),
        "org/one-gguf": Repository({"only.gguf": b"one", "config.json": b"{}"}),
        "org/private": Repository(SAFETENSORS_FILES, is_private=True),
        "org/gated": Repository(SAFETENSORS_FILES, is_gated=True),
        "org/pickle": Repository({"config.json": b"{}", "pytorch_model.bin": b"a pickle"}),
        "org/data": Repository({"data.csv": b"1,2"}),
    }
    with serve(Hub(repositories)) as hub:
        yield hub


class Resolve:
    """Runs the command with its own cache."""

    def __init__(self, endpoint: str, home: Path) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "PYTHONPATH": str(SERVER),
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home),
            # No proxy of the machine may stand between.
            "NO_PROXY": "127.0.0.1",
        }

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trunkline_server", "resolve", *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def found(self, *arguments: str, **environment: str) -> dict[str, str]:
        done = self(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        return json.loads(line)

    def mistake(self, *arguments: str, **environment: str) -> str:
        done = self(*arguments, **environment)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, done.stderr
        assert "Traceback" not in done.stderr
        return errors[0]


@pytest.fixture
def resolve(hub: Hub, tmp_path: Path) -> Resolve:
    return Resolve(hub.url, tmp_path / "home")


def test_download_takes_what_the_model_needs_and_nothing_else(resolve: Resolve, hub: Hub) -> None:
    found = resolve.found("org/whole")
    folder = Path(found["path"])
    assert (found["model_id"], found["revision"]) == ("org/whole", COMMIT)
    names = {path.name for path in folder.iterdir()}
    unwanted = {"consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md"}
    assert names == set(SAFETENSORS_FILES) - unwanted
    for name in names:
        assert (folder / name).read_bytes() == SAFETENSORS_FILES[name]
    # A second time everything is there: no file is fetched again.
    hub.requests.clear()
    assert resolve.found("org/whole") == found
    assert [path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path] == []


def test_a_revision_is_a_branch_a_tag_or_a_commit(resolve: Resolve) -> None:
    assert resolve.found("org/whole", "--revision", "v1.0")["revision"] == COMMIT
    assert resolve.found("org/whole", "--revision", COMMIT)["revision"] == COMMIT
    error = resolve.mistake("org/whole", "--revision", "v9")
    assert error == "error: repository `org/whole` has no revision `v9`; hint: check `--revision`"


def test_a_broken_connection_goes_on_where_it_broke(resolve: Resolve, hub: Hub) -> None:
    # The library writes pieces of 10 MiB; what came of the broken piece is asked for again.
    piece = 10 * 2**20
    content = bytes(range(256)) * (12 * 2**20 // 256)
    hub.repositories["org/large"] = Repository({"large.gguf": content})
    hub.break_after = piece + 4096
    assert Path(resolve.found("org/large")["path"]).read_bytes() == content
    ranges = [wanted for method, path, wanted in hub.requests if method == "GET" and path.endswith("large.gguf")]
    assert ranges == [None, f"bytes={piece}-"]


def test_after_a_failed_download_whole_files_are_not_fetched_again(resolve: Resolve, hub: Hub) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    hub.forbidden_file = second
    assert "the token may not read repository `org/whole`" in resolve.mistake("org/whole")
    hub.forbidden_file = None
    hub.requests.clear()
    assert (Path(resolve.found("org/whole")["path"]) / second).read_bytes() == SAFETENSORS_FILES[second]
    fetched = [path.rsplit("/")[-1] for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path]
    assert second in fetched
    assert first not in fetched


def test_one_gguf_file_of_a_repository(resolve: Resolve) -> None:
    assert Path(resolve.found("org/one-gguf")["path"]).read_bytes() == b"one"
    assert Path(resolve.found("org/gguf:m-Q4_0.gguf")["path"]).read_bytes() == b"four"
    assert Path(resolve.found("org/gguf:q8_0")["path"]).read_bytes() == b"eight"
    assert "has 2 `.gguf` files: m-Q4_0.gguf, m-Q8_0.gguf; hint: name one, as in" in resolve.mistake("org/gguf")
    assert "no `.gguf` file for `Q5_K`" in resolve.mistake("org/gguf:Q5_K")


@pytest.mark.parametrize(
    ("arguments", "token", "expected"),
    [
        (["org/absent"], None, "the Hub has no repository `org/absent` that may be read; hint: check its name"),
        (["org/private"], None, "the Hub has no repository `org/private` that may be read"),
        (["org/gated"], None, "repository `org/gated` is gated; hint: ask for access"),
        (["org/whole"], "hf_wrong", "the Hub does not accept the token; hint: check `HF_TOKEN`"),
        (["org/absent"], VALID_TOKEN, "the Hub has no repository `org/absent`"),
        (["org/pickle"], None, "has its weights only as pickle files, which are never read"),
        (["org/data"], None, "has neither safetensors nor a `.gguf` file"),
        (["-"], None, "neither a local path nor a valid Hub id"),
    ],
)
def test_refusals_are_one_clear_line(resolve: Resolve, arguments: list[str], token: str | None, expected: str) -> None:
    error = resolve.mistake(*arguments, **({"HF_TOKEN": token} if token else {}))
    assert expected in error
    assert "hf_" not in error


def test_a_token_opens_private_and_gated_repositories(resolve: Resolve) -> None:
    assert resolve.found("org/private", HF_TOKEN=VALID_TOKEN)["revision"] == COMMIT
    assert resolve.found("org/gated", HF_TOKEN=VALID_TOKEN)["revision"] == COMMIT


def test_offline_serves_from_the_cache_or_says_so(resolve: Resolve, hub: Hub) -> None:
    error = resolve.mistake("org/whole", HF_HUB_OFFLINE="1")
    assert "is not in the local cache, and `HF_HUB_OFFLINE` is set" in error
    assert hub.requests == []
    online = resolve.found("org/whole")
    gguf = resolve.found("org/gguf:m-Q4_0.gguf")
    hub.requests.clear()
    assert resolve.found("org/whole", HF_HUB_OFFLINE="1") == online
    assert resolve.found("org/gguf:q4_0", HF_HUB_OFFLINE="1") == gguf
    assert "for `q8_0`" in resolve.mistake("org/gguf:q8_0", HF_HUB_OFFLINE="1")
    assert hub.requests == []


def test_a_hub_that_is_down_does_not_matter_for_what_is_cached(resolve: Resolve, hub: Hub) -> None:
    online = resolve.found("org/whole")
    with socket.socket() as reserved:
        # Bound and not listening: nobody answers there, and nobody else can.
        reserved.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        assert resolve.found("org/whole", HF_ENDPOINT=nowhere) == online
        error = resolve.mistake("org/gguf", HF_ENDPOINT=nowhere)
    assert "the Hub cannot be reached for `org/gguf` at revision `main`" in error
    hub.broken_status = 501
    assert resolve.found("org/whole") == online
    assert "the Hub answers with status 501" in resolve.mistake("org/gguf")

"""Runs `resolve` against a Hub on this machine, each time in a process of its own; see `resolver.py`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import huggingface_hub
import pytest
from tests.hub.fake_hub import COMMIT, VALID_TOKEN, Hub, Repository, serve
from tests.hub.resolver import ADAPTER
from trunkline_server import hub as hub_module
from trunkline_server.errors import InvalidArgument

SERVER = Path(__file__).resolve().parents[2]
SAFETENSORS_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
    "small.tiktoken": b"YQ== 0",
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
ADAPTER_FILES = {
    "adapter_config.json": b"{}", "adapter_model.safetensors": b"factors", "adapter_model.bin": b"a pickle",
    "optimizer.pt": b"a pickle", "tokenizer.json": b"{}",
}  # fmt: skip
# One of two models is in two files.
SPLIT_FILES = {
    "Q8_0/m-Q8_0-00001-of-00002.gguf": b"one", "Q8_0/m-Q8_0-00002-of-00002.gguf": b"two", "m-Q4_K_M.gguf": b"four",
    "mmproj-F16.gguf": b"images",
}  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    repositories = {
        "org/whole": Repository(SAFETENSORS_FILES, revisions=("main", "v1.0")),
        "org/gguf": Repository(GGUF_FILES),
        "org/split": Repository(SPLIT_FILES),
        "org/one-gguf": Repository({"only.gguf": b"one", "config.json": b"{}"}),
        "org/private": Repository(SAFETENSORS_FILES, is_private=True),
        "org/gated": Repository(SAFETENSORS_FILES, is_gated=True),
        "org/pickle": Repository({"config.json": b"{}", "pytorch_model.bin": b"a pickle"}),
        "org/data": Repository({"data.csv": b"1,2"}),
        "org/adapter": Repository(ADAPTER_FILES),
        "org/private-adapter": Repository(ADAPTER_FILES, is_private=True),
        "org/escaping": Repository({f"{'../' * 6}escaped.gguf": b"one"}),
    }
    with serve(Hub(repositories)) as hub:
        yield hub


class Resolver:
    """The process that runs commands; see `resolver.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hub.resolver"],
            env={**os.environ, "PYTHONPATH": str(SERVER)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, environment: dict[str, str], commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([environment, commands]) + "\n")
        self._process.stdin.flush()
        results = [(code, output, errors) for code, output, errors in json.loads(self._process.stdout.readline())]
        assert len(results) == len(commands), "the process failed; its traceback is among the captured output"
        return results

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def resolver() -> Iterator[Resolver]:
    with contextlib.closing(Resolver()) as resolver:
        yield resolver


class Resolve:
    """Runs the command with its own cache."""

    def __init__(self, resolver: Resolver, endpoint: str, home: Path) -> None:
        self._resolver = resolver
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "PYTHONPATH": str(SERVER),
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home),
            # Bypasses any proxy of the machine.
            "NO_PROXY": "127.0.0.1",
        }

    def __call__(self, *commands: list[str], **environment: str) -> list[tuple[int, str, str]]:
        """Runs all commands in one process; returns exit code, standard output and standard error of each."""
        return self.run(*(["resolve", *command] for command in commands), **environment)

    def run(self, *commands: list[str], **environment: str) -> list[tuple[int, str, str]]:
        return self._resolver.run({**self.environment, **environment}, commands)

    def found(self, *commands: list[str], **environment: str) -> list[dict[str, str]]:
        answers = []
        for code, output, errors in self(*commands, **environment):
            assert code == 0, errors
            (line,) = output.splitlines()
            answers.append(json.loads(line))
        return answers

    def mistakes(self, *commands: list[str], **environment: str) -> list[str]:
        answers = []
        for code, output, errors in self(*commands, **environment):
            assert (code, output) == (2, ""), errors
            (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
            answers.append(line)
        return answers


@pytest.fixture
def resolve(resolver: Resolver, hub: Hub, tmp_path: Path) -> Resolve:
    return Resolve(resolver, hub.url, tmp_path / "home")


def test_the_command_prints_one_line_of_json(resolve: Resolve) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trunkline_server", "resolve", "org/whole", "--revision", "v1.0"],
        env=resolve.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout).keys() == {"path", "model_id", "revision"}
    assert done.stdout.count("\n") == 1


def test_download_takes_what_the_model_needs_and_nothing_else(resolve: Resolve, hub: Hub) -> None:
    (found,) = resolve.found(["org/whole"])
    folder = Path(found["path"])
    assert (found["model_id"], found["revision"]) == ("org/whole", COMMIT)
    names = {path.name for path in folder.iterdir()}
    unwanted = {"consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx"}
    assert names == set(SAFETENSORS_FILES) - unwanted
    for name in names:
        assert (folder / name).read_bytes() == SAFETENSORS_FILES[name]
    # The second time, no file is fetched again.
    hub.requests.clear()
    assert resolve.found(["org/whole"]) == [found]
    assert fetched(hub) == []


def test_a_revision_is_a_branch_a_tag_or_a_commit(resolve: Resolve) -> None:
    found = resolve.found(["org/whole", "--revision", "v1.0"], ["org/whole", "--revision", COMMIT])
    assert [answer["revision"] for answer in found] == [COMMIT, COMMIT]


def test_a_broken_download_resumes(resolve: Resolve, hub: Hub) -> None:
    # The library writes pieces of 10 MiB; the broken piece is requested again from its start.
    piece = 10 * 2**20
    content = bytes(range(256)) * (12 * 2**20 // 256)
    hub.repositories["org/large"] = Repository({"large.gguf": content})
    hub.break_after = piece + 4096
    (found,) = resolve.found(["org/large"])
    assert Path(found["path"]).read_bytes() == content
    ranges = [wanted for method, path, wanted in hub.requests if method == "GET" and path.endswith("large.gguf")]
    assert ranges == [None, f"bytes={piece}-"]


def test_after_a_failed_download_whole_files_are_not_fetched_again(resolve: Resolve, hub: Hub) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    hub.forbidden_file = second
    (error,) = resolve.mistakes(["org/whole"])
    assert "the token has no access to repository `org/whole`" in error
    hub.forbidden_file = None
    hub.requests.clear()
    (found,) = resolve.found(["org/whole"])
    assert (Path(found["path"]) / second).read_bytes() == SAFETENSORS_FILES[second]
    assert second in fetched(hub)
    assert first not in fetched(hub)


def test_a_model_that_the_disk_has_no_room_for_is_refused_before_it_is_fetched(resolve: Resolve, hub: Hub) -> None:
    hub.repositories["org/huge"] = Repository({"huge.gguf": b"small"}, stated_size=1 << 60)
    (error,) = resolve.mistakes(["org/huge"])
    assert "`org/huge` takes 1099511627776 MiB more, but `/" in error
    assert "MiB free; hint: free space, or set `HF_HOME` to another disk" in error
    assert fetched(hub) == []


# Runs the first line of its input with a small disk as `HF_HOME`, then the second with a larger one.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=14m none "$HF_HOME" || exit 77
"$@"; echo "code $?"; find "$HF_HOME" -size +1M
mount -o remount,size=64m "$HF_HOME"
"$@"; echo "code $?"
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_download(resolve: Resolve, hub: Hub, tmp_path: Path) -> None:
    # The library writes pieces of 10 MiB.
    content = bytes(range(256)) * (24 * 2**20 // 256)
    hub.repositories["org/large"] = Repository({"large.gguf": content})
    # Without sizes, the room cannot be checked before.
    hub.states_sizes = False
    home = tmp_path / "small"
    home.mkdir()
    command = [sys.executable, "-m", "trunkline_server", "resolve", "org/large"]
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", *command],
        env={**resolve.environment, "HF_HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip(f"this system mounts no file system for a test: {result.stderr}")
    first, *rest = result.stdout.splitlines()
    # Nothing of a file is left that takes room.
    assert first == "code 2"
    assert "the disk is full while downloading `org/large`; hint: free space" in result.stderr
    assert json.loads(rest[0])["path"].endswith("large.gguf")
    assert rest[1:] == ["code 0"]


def test_a_disk_that_others_fill_during_a_download(monkeypatch: pytest.MonkeyPatch) -> None:

    def fill(*_: object, **__: object) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fill)
    monkeypatch.setattr(hub_module, "_list_files", lambda *_: ({"m.gguf": 3 << 20}, False))
    with pytest.raises(InvalidArgument, match=r"`org/new` takes 3 MiB more, but `/.*` has 0 MiB free"):
        hub_module.resolve("org/new", revision=None)


def test_one_gguf_file_of_a_repository(resolve: Resolve) -> None:
    found = resolve.found(["org/one-gguf"], ["org/gguf:m-Q4_0.gguf"], ["org/gguf:q8_0"])
    assert [Path(answer["path"]).read_bytes() for answer in found] == [b"one", b"four", b"eight"]


def test_a_divided_gguf_model_is_one_model(resolve: Resolve, hub: Hub) -> None:
    split, default = resolve.found(["org/split:Q8_0"], ["org/split"])
    path = Path(split["path"])
    assert (path.name, path.read_bytes()) == ("m-Q8_0-00001-of-00002.gguf", b"one")
    assert path.with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == b"two"
    # Many models stand for that of Q4_K_M, as in llama.cpp.
    assert Path(default["path"]).name == "m-Q4_K_M.gguf"
    assert "mmproj-F16.gguf" not in fetched(hub)


def test_an_adapter_is_two_files_which_are_downloaded_once(resolve: Resolve, hub: Hub) -> None:
    def find(*names: str, **environment: str) -> list[tuple[int, str, str]]:
        commands = ([ADAPTER, name] for name in names)
        return resolve.run(*commands, HF_HUB_DISABLE_PROGRESS_BARS="1", **environment)

    ((code, output, errors),) = find("org/adapter")
    assert code == 0, errors
    names = ("adapter_config.json", "adapter_model.safetensors")
    found = {path.name: path.read_bytes() for path in Path(output.strip()).iterdir()}
    assert found == {name: ADAPTER_FILES[name] for name in names}
    hub.requests.clear()
    assert find("org/adapter") == [(0, output, "")]
    assert fetched(hub) == []
    assert find("org/adapter", HF_HUB_OFFLINE="1") == [(0, output, "")]
    problems = {
        "org/absent": "the Hub has no repository `org/absent`",
        "org/private-adapter": "or you have no access to it",
        "org/adapter:x.gguf": "adapter `org/adapter:x.gguf` does not exist",
    }
    for (code, output, errors), problem in zip(find(*problems), problems.values(), strict=True):
        assert (code, output) == (2, "")
        assert problem in errors
    ((code, _, errors),) = find("org/private-adapter", HF_TOKEN=VALID_TOKEN)
    assert code == 0, errors


def test_refusals_are_one_line(resolve: Resolve) -> None:
    expected = {
        "org/absent": "the Hub has no repository `org/absent`, or you have no access to it; hint: check the name",
        "org/private": "the Hub has no repository `org/private`, or you have no access to it",
        "org/gated": "repository `org/gated` is gated; hint: request access",
        "org/pickle": "has only pickle files, which are never loaded",
        "org/data": "has neither safetensors nor a `.gguf` file",
        "-": "neither a local path nor a valid Hub id",
        "org/gguf": "has 2 `.gguf` models: m-Q4_0.gguf, m-Q8_0.gguf; hint: name one, as in `org/gguf:m-Q4_0.gguf`",
        "org/gguf:Q5_K": "no `.gguf` model that matches `Q5_K`; hint: it has m-Q4_0.gguf, m-Q8_0.gguf",
    }
    errors = resolve.mistakes(*([model] for model in expected))
    for model, error in zip(expected, errors, strict=True):
        assert expected[model] in error
    (error,) = resolve.mistakes(["org/whole", "--revision", "v9"])
    assert error == "error: repository `org/whole` has no revision `v9`; hint: check `--revision`"


def test_no_file_is_written_outside_of_the_cache(resolve: Resolve, tmp_path: Path) -> None:
    (error,) = resolve.mistakes(["org/escaping"])
    assert "`org/escaping` has neither safetensors nor a `.gguf` file" in error
    files = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert files <= {"home"}
    assert not list(tmp_path.parent.rglob("escaped.gguf"))


def test_only_a_valid_token_opens_private_and_gated_repositories(resolve: Resolve) -> None:
    found = resolve.found(["org/private"], ["org/gated"], HF_TOKEN=VALID_TOKEN)
    assert [answer["revision"] for answer in found] == [COMMIT, COMMIT]
    (error,) = resolve.mistakes(["org/whole"], HF_TOKEN="hf_wrong")
    assert error == "error: the Hub rejected the token; hint: check `HF_TOKEN`, or unset it for public models"


def test_offline_uses_the_cache_or_reports_that_it_cannot(resolve: Resolve, hub: Hub) -> None:
    (error,) = resolve.mistakes(["org/whole"], HF_HUB_OFFLINE="1")
    assert "is not in the local cache, and `HF_HUB_OFFLINE` is set" in error
    assert hub.requests == []
    online = resolve.found(["org/whole"], ["org/gguf:m-Q4_0.gguf"])
    hub.requests.clear()
    assert resolve.found(["org/whole"], ["org/gguf:q4_0"], HF_HUB_OFFLINE="1") == online
    (error,) = resolve.mistakes(["org/gguf:q8_0"], HF_HUB_OFFLINE="1")
    assert "that matches `q8_0`" in error
    assert hub.requests == []


def test_cached_models_do_not_need_the_hub(resolve: Resolve, hub: Hub) -> None:
    online = resolve.found(["org/whole"])
    with socket.socket() as reserved:
        # Bound but not listening, so connections are refused and no other process can take the port.
        reserved.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        cached, missing = resolve(["org/whole"], ["org/gguf"], HF_ENDPOINT=nowhere)
    assert json.loads(cached[1]) == online[0]
    assert missing[0] == 2
    assert "cannot reach the Hub for `org/gguf` at revision `main`" in missing[2]
    hub.broken_status = 501
    cached, missing = resolve(["org/whole"], ["org/gguf"])
    assert json.loads(cached[1]) == online[0]
    assert "the Hub answered with status 501" in missing[2]


def fetched(hub: Hub) -> list[str]:
    """Returns the names of the files whose contents were requested."""
    return [path.rsplit("/")[-1] for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path]


def test_a_download_tells_its_progress_and_a_local_search_fetches_nothing(resolve: Resolve, hub: Hub) -> None:
    ((code, _, error),) = resolve(["org/whole", "--local"])
    assert code == 2
    assert "`org/whole` is not downloaded" in error
    assert fetched(hub) == []
    first, second = resolve(["org/whole", "--progress"], ["org/whole", "--progress", "--local"])
    *progress, found = map(json.loads, first[1].splitlines())
    total = sum(file.stat().st_size for file in Path(found["path"]).iterdir())
    assert progress[0] == {"done_bytes": 0, "total_bytes": total}
    assert progress[-1] == {"done_bytes": total, "total_bytes": total}
    # The second search finds everything in the cache.
    assert [json.loads(line) for line in second[1].splitlines()] == [found]


def test_downloaded_models_are_listed_and_removed(resolve: Resolve) -> None:
    nothing = "no models are downloaded; hint: run `trunkline download org/name`"
    assert resolve.run(["list"]) == [(0, f"{nothing}\n", "")]
    resolve.found(["org/whole"], ["org/split:Q8_0"], ["org/split:Q4_K_M"])

    def names() -> list[str]:
        ((code, output, _),) = resolve.run(["list"])
        assert code == 0
        heading, *lines = output.splitlines()
        assert heading.split() == ["MODEL", "SIZE", "LAST", "USED"]
        return sorted(line.split()[0] for line in lines)

    split = ["org/split:Q8_0/m-Q8_0-00001-of-00002.gguf", "org/split:m-Q4_K_M.gguf"]
    assert names() == [*split, "org/whole"]
    # Each name is one that `serve` takes, and what is shown needs no Hub.
    resolve.found(*([name] for name in names()), HF_HUB_OFFLINE="1")
    (removed,) = resolve.run(["rm", "org/whole"])
    assert removed == (0, "removed org/whole, 1 MiB\n", "")
    assert names() == split
    for command, message in [
        (["rm", "org/whole"], "`org/whole` is not downloaded"),
        (["rm", "org/split:m-Q4_K_M.gguf"], "is removed as a whole; hint: run `trunkline rm org/split`"),
        (["show", "org/whole"], "`org/whole` is not downloaded; hint: run `trunkline download org/whole`"),
    ]:
        ((code, output, errors),) = resolve.run(command)
        assert (code, output) == (2, "")
        assert message in errors

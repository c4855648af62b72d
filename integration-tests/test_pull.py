"""Models that are added while the server runs: from a Hub on this machine, by requests that name them, and from a
folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Trunkline, http, serving, wait_for, write_shallow
from test_models import listed, manage, states
from tests.hub import fake_hub

POOL = ("--max-batch-total-tokens", "4096")
# A stream that goes on for seconds on a shallow model.
LONG: dict[str, Any] = {"prompt": "The sea is", "ignore_eos": True, "stream": True, "max_tokens": 800}
KEYS = """
[tenants.root]
keys = ["root-key-0123456789"]
admin = true

[tenants.guest]
keys = ["guest-key-0123456789"]

[tenants.limited]
keys = ["limited-key-0123456789"]
models = ["first"]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    write_shallow(made / "first.gguf", 2)
    write_shallow(made / "second.gguf", 3)
    return made


@pytest.fixture(scope="module")
def hub(files: Path) -> Iterator[fake_hub.Hub]:
    content = (files / "second.gguf").read_bytes()
    repositories = {
        "org/small": fake_hub.Repository({"small-Q4_1.gguf": content, "README.md": b"#"}),
        "org/two": fake_hub.Repository({"two-Q4_1.gguf": content, "two-Q8_0.gguf": b"damaged"}),
    }
    with fake_hub.serve(fake_hub.Hub(repositories)) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder")


@pytest.fixture(scope="module")
def server(files: Path, hub: fake_hub.Hub, home: Path, folder: Path) -> Iterator[Trunkline]:
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    flags = ("--pull", "hub", "--models-folder", str(folder), *POOL)
    with serving(*flags, model=str(files / "first.gguf"), env=env) as server:
        yield server


def pull(server: Trunkline, model: str, **headers: str) -> list[dict[str, Any]]:
    answer = http.post(f"{server.base_url}/api/pull", json={"model": model}, headers=headers, timeout=60)
    return [json.loads(line) for line in answer.text.splitlines()]


def delete(server: Trunkline, model: str, **headers: str) -> httpx.Response:
    return http.request("DELETE", f"{server.base_url}/api/delete", json={"model": model}, headers=headers, timeout=60)


def is_cached(home: Path, repository: str) -> bool:
    return (home / "hub" / f"models--{repository.replace('/', '--')}").exists()


def test_a_pull_tells_its_progress_and_a_delete_frees_disk(server: Trunkline, hub: fake_hub.Hub, home: Path) -> None:
    hub.held = threading.Event()
    lines = []
    body = {"model": "hf.co/org/small"}
    with http.stream("POST", f"{server.base_url}/api/pull", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            lines.append(json.loads(line))
            if lines[-1].get("completed", 0) > 0:
                # Half of the file is there, and the server goes on with other requests.
                assert server.complete("The sea")["choices"]
                assert "org/small" not in listed(server)
                hub.held.set()
    assert lines[0] == {"status": "pulling manifest"} and lines[-1] == {"status": "success"}
    progress = [line for line in lines if line["status"] == "pulling org/small"]
    size = len(hub.repositories["org/small"].files["small-Q4_1.gguf"])
    assert {line["total"] for line in progress} == {size + 1}
    done = [line["completed"] for line in progress]
    assert done == sorted(done) and any(0 < part < size for part in done) and done[-1] == size + 1
    assert states(server)["org/small"] == "unloaded"
    assert pull(server, "org/small") == [{"status": "pulling manifest"}, {"status": "success"}]
    assert server.complete("The sea", model="org/small")["model"] == "org/small"
    assert is_cached(home, "org/small")
    assert delete(server, "org/small:latest").status_code == 200
    assert "org/small" not in listed(server) and not is_cached(home, "org/small")
    assert delete(server, "org/small").status_code == 404
    wait_for(lambda: len(server.pids("trunkline_server")) <= 2, "the end of its shard, beside a spare one")


def test_a_request_adds_the_model_that_it_names(server: Trunkline, hub: fake_hub.Hub) -> None:
    hub.held = threading.Event()
    body = {"model": "org/two:Q4_1", "prompt": "The sea is", "max_tokens": 4, "stream": True}
    comments, events = [], []
    with http.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            (comments if line.startswith(":") else events).append(line)
            if "downloading" in line:
                hub.held.set()
    assert ": model org/two:Q4_1 is downloading, " in "\n".join(comments)
    assert events[-2] == "data: [DONE]"
    os.kill(server.router_pid(), signal.SIGKILL)
    wait_for(server.is_ready, "the router to be back")
    assert "org/two:Q4_1" in listed(server)
    assert server.complete("The sea", model="org/two:Q4_1")["model"] == "org/two:Q4_1"
    # Another file of the same repository keeps it on the disk. It is damaged, so it cannot be loaded.
    hub.held = None
    assert pull(server, "org/two:Q8_0")[-1] == {"status": "success"}
    refused = delete(server, "org/two:Q4_1")
    assert (refused.status_code, refused.json()["code"]) == (409, "model_not_deleted")
    assert "`org/two:Q8_0` is of the same repository" in refused.json()["error"]
    failed = manage(server, "org/two:Q8_0", "load")
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "model_failed")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("org/none", "the Hub has no repository `org/none`, or you have no access to it"),
        ("org/two", "repository `org/two` has 2 `.gguf` models: two-Q4_1.gguf, two-Q8_0.gguf"),
        ("llama3.2", "it is no name of a Hub repository"),
        # A folder of this name is in the folder in which the server was started.
        ("integration-tests/clients", "the Hub has no repository `integration-tests/clients`"),
        ("org/two:../../secret", "has no `.gguf` model that matches"),
        ("/no/such/file.gguf", "`/no/such/file.gguf` does not exist"),
    ],
)
def test_a_model_that_cannot_be_added_is_refused_by_name(server: Trunkline, name: str, problem: str) -> None:
    answer = http.post(f"{server.base_url}/api/pull", json={"model": name, "stream": False}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_pulled"), answer.text
    assert problem in answer.json()["error"]
    line = pull(server, name)[-1]
    assert line["code"] == "model_not_pulled" and problem in line["error"]


def test_a_model_that_the_server_was_started_with_is_not_deleted(server: Trunkline) -> None:
    refused = delete(server, "first")
    assert (refused.status_code, refused.json()["code"]) == (409, "model_not_deleted")
    assert server.complete("The sea", model="first")["choices"]


def test_models_come_and_go_with_their_files(server: Trunkline, files: Path, folder: Path) -> None:
    path = folder / "guest.gguf"
    shutil.copyfile(files / "second.gguf", path)
    wait_for(lambda: "guest" in listed(server), "the model of the new file")
    with http.stream(
        "POST", f"{server.base_url}/v1/completions", json=LONG | {"model": "guest"}, timeout=120
    ) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        path.unlink()
        wait_for(lambda: "guest" not in listed(server), "the model to leave the list")
        gone = http.post(f"{server.base_url}/v1/completions", json=LONG | {"model": "guest"}, timeout=60)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        # The open stream goes on to its end.
        events = [line for line in lines if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]" and json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    wait_for(lambda: len(server.pids("trunkline_server")) <= 3, "the end of its shard")
    shutil.copyfile(files / "first.gguf", path)
    wait_for(lambda: "guest" in listed(server), "the model of another file with the same name")
    assert server.complete("The sea", model="guest")["model"] == "guest"


def test_only_admins_download_and_delete(files: Path, hub: fake_hub.Hub, tmp_path: Path) -> None:
    hub.held = None
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    flags = ("--pull", "hub", "--api-keys", str(keys), "--served-model-name", "first", *POOL)
    root, guest, limited = ({"authorization": f"Bearer {name}-key-0123456789"} for name in ("root", "guest", "limited"))
    with serving(*flags, model=str(files / "first.gguf"), env=env, headers=root) as server:
        (*_, refused) = pull(server, "org/small", **guest)
        assert refused["code"] == "model_not_pulled" and "`org/small` is not downloaded" in refused["error"]
        for name, caller in (("/etc/passwd", guest), ("org/small", limited)):
            answer = http.post(f"{server.base_url}/api/pull", json={"model": name}, headers=caller, timeout=60)
            assert answer.status_code == 404, answer.text
        assert pull(server, "org/small", **root)[-1] == {"status": "success"}
        # Everybody may use the model now, except tenants with a list of models.
        answer = http.post(
            f"{server.base_url}/v1/completions",
            json={"model": "org/small", "prompt": "The sea", "max_tokens": 4},
            headers=guest,
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        denied = delete(server, "org/small", **guest)
        assert (denied.status_code, denied.json()["code"]) == (403, "admins_only")
        assert delete(server, "org/small", **root).status_code == 200

"""`trunkline chat` and `run` start a server, use one that runs, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from harness import TRUNKLINE, Trunkline, alive, descendants, wait_for


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user of whom no server runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    yield kept | harness.DEFAULTS | {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def start(environment: dict[str, str], *args: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([str(TRUNKLINE), *args], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_a_chat_in_a_pipe_starts_a_server_and_ends_it(environment: dict[str, str], tmp_path: Path) -> None:
    chat = start(environment, "chat", Trunkline.default_model, "--seed", "1", "--max-tokens", "8")
    # It waits for its question, which it reads once the server is ready.
    started = wait_for(lambda: len(found := descendants(chat.pid)) >= 3 and found, "launcher, router and shard")
    answer, progress = chat.communicate("What is a trunk line?", timeout=120)
    assert (chat.returncode, progress) == (0, "the reply was cut by its limit of tokens\n")
    assert answer.strip() and answer.endswith("\n")
    assert not [pid for pid in started if alive(pid)]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("trunkline-")]


def test_a_killed_chat_leaves_no_server(environment: dict[str, str]) -> None:
    chat = start(environment, "chat", Trunkline.default_model)
    started = wait_for(lambda: len(found := descendants(chat.pid)) >= 3 and found, "launcher, router and shard")
    chat.send_signal(signal.SIGKILL)
    chat.communicate()
    wait_for(lambda: not any(alive(pid) for pid in started), "the server to end")


def test_a_server_of_the_same_model_is_used(shallow: Trunkline) -> None:
    name = shallow.banner[0].split(" is ready at ")[0]
    answers = []
    for target in (name, Trunkline.default_model, shallow.base_url):
        before = shallow.metrics()["trunkline_output_tokens_total"]
        run = start(shallow.environment, "run", target, "Count to ten.", "--temperature", "0", "--max-tokens", "5")
        answers.append(run.communicate("", timeout=60)[0])
        assert shallow.metrics()["trunkline_output_tokens_total"] == before + 5
    body = {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0, "max_tokens": 5}
    reply = harness.http.post(f"{shallow.base_url}/v1/chat/completions", json=body).json()
    assert answers == [reply["choices"][0]["message"]["content"] + "\n"] * 3


def test_top_shows_what_the_metrics_say(shallow: Trunkline) -> None:
    shallow.chat("Hello")
    top = start(shallow.environment, "top", str(shallow.process.pid), "--once")
    text, _ = top.communicate(timeout=30)
    assert "running 0, queued 0" in text and " 0 serves" in text and "device  " in text
    assert not any(line.split()[2:] == ["-", "-", "-"] for line in text.splitlines() if "first token" in line), text

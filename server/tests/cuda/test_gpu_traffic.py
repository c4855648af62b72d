"""`gpu.traffic`: unanswered clients are reported, and a shard is killed while it works."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiers import full

BENCHMARK = str(Path(__file__).resolve().parents[3] / "benchmark")
NUM_OTHERS = 3
# Longest wait for another thread; only a failure reaches it.
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARK)


def others(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., str]) -> Any:
    """Yields clients of a server with these answers, stopped once they are busy or one failed, or after a second."""
    from gpu import traffic

    monkeypatch.setattr(traffic, "ask", answer)
    monkeypatch.setattr(traffic, "ask_and_leave", answer)
    size = replace(traffic.LEAST, others=NUM_OTHERS)
    with traffic.Others(0, size, 100, [[2, 3, 4]], seed=1) as asking:
        asking.wait_until_busy(deadline_s=1.0)
    return asking


def test_answered_clients_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = others(monkeypatch, lambda *_: "[]")
    assert found.problems() == found.problems(is_shard_killed=True) == []


@pytest.mark.parametrize("is_shard_killed", [True, full(False)])
def test_unanswered_and_refused_clients_are_a_problem(monkeypatch: pytest.MonkeyPatch, is_shard_killed: bool) -> None:
    for error in (ConnectionRefusedError(), RuntimeError("the server answered 500")):

        def fail(*_: object, error: Exception = error) -> str:
            raise error

        problems = others(monkeypatch, fail).problems(is_shard_killed=is_shard_killed)
        assert "none was answered whole" in problems
        assert ("the server answered 500" in problems) == isinstance(error, RuntimeError)


def test_a_lost_request_is_a_problem_if_nothing_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu import traffic

    lock, asked = threading.Lock(), []

    def lose_the_first(*_: object) -> str:
        with lock:
            asked.append(1)
            if len(asked) == 1:
                raise traffic.ShardLost("shard_lost")
        return "[]"

    found = others(monkeypatch, lose_the_first)
    assert found.problems() == ["1 lost"]
    assert found.problems(is_shard_killed=True) == []


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_shard_is_killed_while_it_works_for_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    from gpu import traffic
    from gpu.lines import Lines

    size = replace(traffic.LEAST, others=NUM_OTHERS)
    requests = traffic.recorded(size, 100)
    bodies = list(requests.values())
    lock, released, at_kill = threading.Lock(), threading.Event(), []
    counts = {"begun": 0, "answered": 0}

    class Counted(traffic.Others):
        def __enter__(self) -> Counted:
            counts.update(begun=0, answered=0)
            released.clear()
            super().__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            released.set()
            super().__exit__(*error)

    def ask(_port: int, body: dict[str, Any], *_: object) -> str:
        """Answers recorded requests and the first other one at once; other clients wait for the kill or the end."""
        if body in bodies:
            return "[]"
        if not is_answered:
            raise RuntimeError("the server answered 500")
        with lock:
            counts["begun"] += 1
            is_first = counts["begun"] == 1
        assert is_first or released.wait(DEADLINE_S)
        with lock:
            counts["answered"] += 1
        return "[]"

    def kill(_launcher: int) -> bool:
        with lock:
            at_kill.append(dict(counts))
        released.set()
        return True

    for name, stand_in in {
        "ask": ask, "ask_and_leave": lambda *_: None, "kill_shard": kill,
        "left_behind": lambda _port: [], "Others": Counted,
    }.items():  # fmt: skip
        monkeypatch.setattr(traffic, name, stand_in)
    lines = Lines(tmp_path / "results.jsonl", "traffic")
    server = SimpleNamespace(port=0, process=SimpleNamespace(pid=0))
    comparison = traffic.Comparison(lines, "auto", requests)
    traffic._first_server(server, comparison, size, 100, [body["prompt"] for body in bodies])
    found = [json.loads(line) for line in lines.path.read_text().splitlines()]
    failed = [line["name"].rsplit(": ", 1)[1] for line in found if not line["holds"]]
    if is_answered:
        assert failed == []
        assert at_kill[0]["begun"] > at_kill[0]["answered"] > 0
    else:
        assert failed == ["others were answered", "a shard was killed"]

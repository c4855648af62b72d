"""`gpu.traffic` reports clients that are not answered."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from gpu import traffic

REFUSED, BROKEN, LOST = ConnectionRefusedError(), RuntimeError("the server answered 500"), traffic.ShardLost("lost")


@pytest.mark.parametrize(
    ("errors", "problems", "problems_if_killed"),
    [
        ([], [], []),
        ([LOST], ["1 lost"], []),
        (itertools.repeat(REFUSED), ["none was answered whole"], ["none was answered whole"]),
        (itertools.repeat(BROKEN), ["none was answered whole", str(BROKEN)], ["none was answered whole", str(BROKEN)]),
    ],
)
def test_unanswered_clients_are_a_problem(
    errors: list[Exception], problems: list[str], problems_if_killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first requests end with these errors, all others are answered."""
    left = iter(errors)

    def answer(*_: object) -> str:
        error = next(left, None)
        if error is not None:
            raise error
        return "[]"

    monkeypatch.setattr(traffic, "ask", answer)
    monkeypatch.setattr(traffic, "ask_and_leave", answer)
    with traffic.Others(0, replace(traffic.LEAST, others=3), 100, [[2, 3, 4]], seed=1) as asking:
        asking.wait_until_busy(deadline_s=1.0)
    assert set(problems) <= set(asking.problems()) and bool(problems) == bool(asking.problems())
    found = asking.problems(is_shard_killed=True)
    assert set(problems_if_killed) <= set(found) and bool(problems_if_killed) == bool(found)

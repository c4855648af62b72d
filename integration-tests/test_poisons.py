"""Requests that crash the shard do not end the server, however often they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import ROOT, START_DEADLINE_S, Trunkline, http, serving, wait_for

# A prompt with this token crashes the shard.
POISON = 4242
# Two prompts with these tokens crash the shard in one step.
PAIR = (4243, 4244)
# The launcher gives up at the sixth crash within a minute that counts.
MAX_CRASHES = 6
# Each crashes the shard twice.
NUM_POISONS = 4

# Runs `python -m trunkline_server` with an engine that crashes as above.
PROGRAM = f"""#!{ROOT}/.venv/bin/python
import os, runpy, sys

assert sys.argv[1:3] == ["-m", "trunkline_server"]
del sys.argv[1]
if sys.argv[2] == "serve":
    from trunkline_server.engine import Engine

    begin, marks = Engine.begin, {{}}

    def begin_or_crash(self, plan, *arguments):
        for start in plan.starts:
            prompt = start.token_ids[: start.num_prompt_tokens]
            marks[start.sequence_id] = {{{POISON}, {PAIR[0]}, {PAIR[1]}}}.intersection(prompt)
        found = set().union(*(marks[chunk.sequence_id] for chunk in plan.chunks))
        if {POISON} in found or {{{PAIR[0]}, {PAIR[1]}}} <= found:
            os._exit(99)
        begin(self, plan, *arguments)

    Engine.begin = begin_or_crash
sys.argv[0] = sys.argv.pop(1)
runpy.run_module("trunkline_server", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    program = tmp_path_factory.mktemp("program") / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    with serving(env={"TRUNKLINE_PYTHON": str(program)}) as running:
        yield running


def num_crashes(server: Trunkline) -> int:
    return server.log().count("exited unexpectedly; restarting process=shard")


def ask(server: Trunkline, prompt: list[int], **fields: Any) -> Any:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True} | fields
    return http.post(f"{server.base_url}/v1/completions", json=body, timeout=120)


def test_a_client_that_repeats_poisons_does_not_end_the_server(server: Trunkline) -> None:
    before = num_crashes(server)
    long = {"max_tokens": 400}
    expected = ask(server, [11, 12, 13], **long).json()["choices"][0]["text"]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(ask, server, [11, 12, 13], **long)
        for number in range(NUM_POISONS):
            # As an SDK does that does not know the header.
            answers = [ask(server, [20 + number, POISON], seed=number * 10 + attempt) for attempt in range(3)]
            assert [answer.status_code for answer in answers] == [502, 400, 400]
            assert [answer.json()["error"]["code"] for answer in answers][:2] == ["crashed_shard", "poison_request"]
            assert all(answer.headers["x-should-retry"] == "false" for answer in answers)
        assert other.result().json()["choices"][0]["text"] == expected
    assert num_crashes(server) - before == 2 * NUM_POISONS > MAX_CRASHES
    assert "requests are to blame for crashes, which do not count process=shard crashes=2" in server.log()
    wait_for(server.is_ready, "readiness after the last crash", START_DEADLINE_S)


def test_two_requests_that_crash_only_together_are_answered(server: Trunkline) -> None:
    before = num_crashes(server)
    long = {"max_tokens": 300}
    prompts = [[30, mark] for mark in PAIR]
    with ThreadPoolExecutor() as pool:
        together = list(pool.map(lambda prompt: ask(server, prompt, **long), prompts))
    alone = [ask(server, prompt, **long) for prompt in prompts]
    texts = [[answer.json()["choices"][0]["text"] for answer in answers] for answers in (together, alone)]
    assert texts[0] == texts[1]
    # The simulator of the scheduler crashes pairs more often.
    assert 2 <= num_crashes(server) - before <= 4
    wait_for(server.is_ready, "readiness after the last crash", START_DEADLINE_S)

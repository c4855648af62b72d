"""Schemas that are made to take long, many at once: their tenant is refused, and no other one is for long."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import httpx
import pytest
from harness import Trunkline, http
from streams import WatchedStream
from tenants import Tenants, headers

pytestmark = pytest.mark.alone

REFUSALS = {"schema_too_complex", "invalid_schema", "schema_too_large"}
DEADLINE_S = 240.0
# Twice as many as may be compiled at once for one tenant.
NUM_BOMBS = 4
ORDINARY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}


def bomb(letter: str) -> dict[str, Any]:
    """Whether any text has them all is found by going through sets of them: twice the work for each one more.

    With these 19 that is a second or a few of one core, after which the compiler gives up: refused in any case, by time
    or by name.
    """
    return {"allOf": [{"type": "string", "pattern": f"{letter}.{{{index}}}!"} for index in range(19)]}


def ask(server: Trunkline, tenant: str, schema: dict[str, Any]) -> httpx.Response:
    """A short chat under a schema."""
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 40, "guided_json": schema}
    return http.post(f"{server.base_url}/v1/chat/completions", json=body, headers=headers(tenant), timeout=DEADLINE_S)


def is_busy(answer: httpx.Response) -> bool:
    """Whether the answer says to come back later; an answer that does so has a hint when."""
    if answer.status_code != 503:
        return False
    assert answer.json()["error"]["code"] == "grammar_busy", answer.text
    assert int(answer.headers["retry-after"]) >= 1
    return True


def test_bombs_of_one_tenant_stop_neither_streams_nor_grammars_of_another(tenants: Tenants) -> None:
    server = tenants.server
    with WatchedStream(server, headers=headers("calm")) as stream, ThreadPoolExecutor(NUM_BOMBS) as pool:
        began = time.monotonic()
        bombs = [pool.submit(ask, server, "bombs", bomb(letter)) for letter in "abcdefgh"[:NUM_BOMBS]]
        next(as_completed(bombs))
        shortest_s, num_busy = time.monotonic() - began, 0
        while is_busy(answer := ask(server, "calm", ORDINARY)):
            assert time.monotonic() - began < DEADLINE_S, "the other tenant's grammar is never compiled"
            num_busy += 1
            time.sleep(int(answer.headers["retry-after"]))
        print(f"ordinary grammar: {answer.status_code} {time.monotonic() - began:.1f} s after the bombs")
        assert answer.status_code == 200, answer.text
        outcomes = Counter[str]()
        for each in bombs:
            refused = each.result()
            if is_busy(refused):
                outcomes["grammar_busy"] += 1
                continue
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["code"] in REFUSALS, refused.text
            outcomes[refused.json()["error"]["code"]] += 1
        pause_s = stream.longest_pause(began, time.monotonic())
    print(f"bombs: {dict(outcomes)}, the first refused after {shortest_s:.1f} s; the stream paused {pause_s:.3f} s")
    print(f"the ordinary grammar was told {num_busy} times to come back")
    assert sum(outcomes.values()) == NUM_BOMBS
    # A stream that waits for the compiler waits for a whole bomb.
    assert pause_s < shortest_s / 2, f"the stream stood still for {pause_s:.2f} s"

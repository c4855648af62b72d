"""Many malicious schemas at once: their tenant is refused, and other tenants are refused only briefly."""

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
# Twice as many as one tenant may compile at once.
NUM_BOMBS = 4
ORDINARY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}


def bomb(letter: str) -> dict[str, Any]:
    """Returns a schema whose compilation takes exponential time in the number of its patterns.

    19 patterns keep one core busy for a few seconds, until the compiler gives up and refuses the schema.
    """
    return {"allOf": [{"type": "string", "pattern": f"{letter}.{{{index}}}!"} for index in range(19)]}


def ask(server: Trunkline, tenant: str, schema: dict[str, Any]) -> httpx.Response:
    """Requests a short chat with a schema."""
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 40, "guided_json": schema}
    return http.post(f"{server.base_url}/v1/chat/completions", json=body, headers=headers(tenant), timeout=DEADLINE_S)


def is_busy(answer: httpx.Response) -> bool:
    """Returns True if the answer says to retry later, and checks that it says when."""
    if answer.status_code != 503:
        return False
    assert answer.json()["error"]["code"] == "grammar_busy", answer.text
    assert int(answer.headers["retry-after"]) >= 1
    return True


def test_schema_bombs_of_one_tenant_block_neither_streams_nor_grammars_of_another(tenants: Tenants) -> None:
    server = tenants.server
    with WatchedStream(server, headers=headers("calm")) as stream, ThreadPoolExecutor(NUM_BOMBS) as pool:
        began = time.monotonic()
        bombs = [pool.submit(ask, server, "bombs", bomb(letter)) for letter in "abcdefgh"[:NUM_BOMBS]]
        next(as_completed(bombs))
        shortest_s, num_busy = time.monotonic() - began, 0
        while is_busy(answer := ask(server, "calm", ORDINARY)):
            assert time.monotonic() - began < DEADLINE_S, "the other tenant's grammar was never compiled"
            num_busy += 1
            time.sleep(int(answer.headers["retry-after"]))
        print(f"ordinary grammar: {answer.status_code}, {time.monotonic() - began:.1f} s after the bombs were sent")
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
    print(f"the ordinary grammar was retried {num_busy} times")
    assert sum(outcomes.values()) == NUM_BOMBS
    # If streams had to wait for the compiler, the pause would be as long as one compilation.
    assert pause_s < shortest_s / 2, f"the stream paused for {pause_s:.2f} s"

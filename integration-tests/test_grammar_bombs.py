"""Schemas that are made to take long, many at once: their tenant is refused, and no other one is for long."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from harness import Trunkline, sse_events, wait_for

pytestmark = pytest.mark.alone

KEYS = {"bombs": "sk-bombs-0123456789abcdef", "calm": "sk-calm-0123456789abcdef"}
REFUSALS = {"schema_too_complex", "invalid_schema", "schema_too_large"}
DEADLINE_S = 240.0
NUM_STREAMED = 800
NUM_BOMBS = 8
ORDINARY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """A server with two tenants."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.touch(mode=0o600)
    keys.write_text("".join(f'[tenants.{name}]\nkeys = "{key}"\n' for name, key in KEYS.items()))
    trunkline = Trunkline("--api-keys", str(keys))
    try:
        yield trunkline.wait_ready()
    finally:
        trunkline.stop()


def headers(tenant: str) -> dict[str, str]:
    """Of a tenant's requests."""
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def bomb(letter: str) -> dict[str, Any]:
    """Whether any text has them all is found by going through sets of them: twice the work for each one more.

    With these 19 that is a second or a few of one core, after which the compiler gives up: refused in any case, by time
    or by name.
    """
    return {"allOf": [{"type": "string", "pattern": f"{letter}.{{{index}}}!"} for index in range(19)]}


def ask(server: Trunkline, tenant: str, schema: dict[str, Any]) -> httpx.Response:
    """A short chat under a schema."""
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 40, "guided_json": schema}
    return httpx.post(f"{server.base_url}/v1/chat/completions", json=body, headers=headers(tenant), timeout=DEADLINE_S)


def is_busy(answer: httpx.Response) -> bool:
    """Whether the answer says to come back later; an answer that does so has a hint when."""
    if answer.status_code != 503:
        return False
    assert answer.json()["error"]["code"] == "grammar_busy", answer.text
    assert int(answer.headers["retry-after"]) >= 1
    return True


def test_bombs_of_one_tenant_stop_neither_streams_nor_grammars_of_another(server: Trunkline) -> None:
    num_texts, ends = [0], []

    def stream() -> None:
        body = {"prompt": "The sea is", "max_tokens": NUM_STREAMED, "temperature": 0, "ignore_eos": True}
        url = f"{server.base_url}/v1/completions"
        with httpx.stream(
            "POST", url, json=body | {"stream": True}, headers=headers("calm"), timeout=DEADLINE_S
        ) as answer:
            for event in sse_events(answer.iter_lines()):
                num_texts[0] += isinstance(event, dict)
                ends.append(event)

    reader = threading.Thread(target=stream)
    reader.start()
    wait_for(lambda: num_texts[0] > 3, "the stream to begin", DEADLINE_S)
    with ThreadPoolExecutor(NUM_BOMBS) as pool:
        began = time.monotonic()
        bombs = [pool.submit(ask, server, "bombs", bomb(letter)) for letter in "abcdefgh"]
        wait_for(lambda: any(each.done() for each in bombs), "the first bomb to be refused", DEADLINE_S)
        num_before, num_busy = num_texts[0], 0
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
    reader.join(DEADLINE_S)
    print(f"bombs: {dict(outcomes)}; the ordinary one was told {num_busy} times to come back")
    assert not reader.is_alive() and ends[-1] == "[DONE]", "the stream did not end as it should"
    assert num_texts[0] > num_before > 3, "the stream stood still"
    choice = next(event["choices"][0] for event in reversed(ends) if isinstance(event, dict) and event["choices"])
    assert choice["finish_reason"] == "length"
    assert sum(outcomes.values()) == NUM_BOMBS

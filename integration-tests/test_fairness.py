"""Tenants beside each other on a real server: what matters is who is answered before whom, not how long it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Trunkline, wait_for

pytestmark = pytest.mark.alone

KEYS = {"flood": "sk-flood-0123456789abcdef", "chats": "sk-chats-0123456789abcdef"}
NUM_FLOOD = 200
NUM_CHATS = 3
OUTPUT_TOKENS = 24


def headers(tenant: str) -> dict[str, str]:
    """Of a tenant's requests."""
    return {"authorization": f"Bearer {KEYS[tenant]}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """A server with two tenants, of which one may raise its class."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.touch(mode=0o600)
    keys.write_text(
        f'[tenants.flood]\nkeys = "{KEYS["flood"]}"\n\n'
        f'[tenants.chats]\nkeys = "{KEYS["chats"]}"\nmax_priority = "high"\nweight = 2\n'
    )
    trunkline = Trunkline("--api-keys", str(keys), "--max-concurrent-requests", "256")
    try:
        yield trunkline.wait_ready()
    finally:
        trunkline.stop()


def ask(server: Trunkline, tenant: str, **fields: Any) -> dict[str, Any]:
    """POST /v1/chat/completions; the parsed answer."""
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "ignore_eos": True}
    url = f"{server.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=body | {"max_tokens": OUTPUT_TOKENS} | fields, headers=headers(tenant), timeout=600)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def waiting(server: Trunkline) -> float:
    """Sequences that wait or run."""
    text = httpx.get(f"{server.base_url}/metrics", headers=headers("chats")).text
    names = ("trunkline_queued_sequences ", "trunkline_running_sequences ")
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def test_a_second_tenant_is_answered_while_a_flood_waits(server: Trunkline) -> None:
    order: list[str] = []
    lock = threading.Lock()

    def send(index: int) -> None:
        # Prompts that share nothing but the template.
        content = f"{index} times {index + 7} is what? Explain every step of it."
        ask(server, "flood", messages=[{"role": "user", "content": content}])
        with lock:
            order.append("flood")

    threads = [threading.Thread(target=send, args=(index,)) for index in range(NUM_FLOOD)]
    for thread in threads:
        thread.start()
    wait_for(lambda: waiting(server) + len(order) >= NUM_FLOOD, "all of the flood", 120)
    for index in range(NUM_CHATS):
        ask(server, "chats", messages=[{"role": "user", "content": f"What is {index}?"}])
        with lock:
            order.append("chat")
    for thread in threads:
        thread.join()
    assert order.count("flood") == NUM_FLOOD
    last = max(index for index, who in enumerate(order) if who == "chat")
    num_before = order[:last].count("flood")
    assert num_before < 150, f"{num_before} of the flood were answered before the last chat, which came after all of it"


def test_a_class_is_answered_and_no_higher_than_the_key_may(server: Trunkline) -> None:
    for tenant, asked, got in [
        ("chats", "priority", "priority"),
        ("flood", "priority", "default"),
        ("flood", "flex", "flex"),
        ("chats", "auto", "default"),
    ]:
        assert ask(server, tenant, max_tokens=1, service_tier=asked)["service_tier"] == got, (tenant, asked)
    assert "service_tier" not in ask(server, "flood", max_tokens=1)
    url = f"{server.base_url}/v1/messages"
    body = {"model": "tgi", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for tenant, asked, got in [
        ("chats", "auto", "priority"),
        ("chats", "standard_only", "standard"),
        ("flood", "auto", "standard"),
    ]:
        answer = httpx.post(url, json=body | {"service_tier": asked}, headers=headers(tenant), timeout=600)
        assert answer.json()["usage"]["service_tier"] == got, (tenant, asked, answer.text)


def test_what_is_no_class_is_refused(server: Trunkline) -> None:
    url = f"{server.base_url}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for fields, param in [
        ({"service_tier": "fast"}, "service_tier"),
        ({"service_tier": "flex", "priority": 1}, "priority"),
    ]:
        answer = httpx.post(url, json=body | fields, headers=headers("flood"), timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text

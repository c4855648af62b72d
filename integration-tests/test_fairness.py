"""Fairness between tenants on a real server. The tests check the order of answers, not their duration."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from harness import Trunkline, http, wait_for
from tenants import Tenants, headers

pytestmark = pytest.mark.alone

# Several times as many sequences as run at once; see the fixture `tenants`.
NUM_FLOOD = 64
FLOOD_TOKENS = 24
NUM_CHATS = 3
CHAT_TOKENS = 8


@pytest.fixture
def server(tenants: Tenants) -> Trunkline:
    return tenants.server


def ask(server: Trunkline, tenant: str, **fields: Any) -> dict[str, Any]:
    """Posts to /v1/chat/completions as a tenant and returns the parsed response."""
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "ignore_eos": True}
    url = f"{server.base_url}/v1/chat/completions"
    answer = http.post(url, json=body | {"max_tokens": CHAT_TOKENS} | fields, headers=headers(tenant), timeout=600)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def num_sequences(server: Trunkline) -> float:
    """Returns how many sequences wait or run."""
    text = http.get(f"{server.base_url}/metrics", headers=headers("chats")).text
    names = ("trunkline_queued_sequences ", "trunkline_running_sequences ")
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def test_second_tenant_is_answered_while_a_flood_waits(server: Trunkline) -> None:
    order: list[str] = []
    lock = threading.Lock()

    def send(index: int) -> None:
        # The prompts share only the chat template's prefix.
        content = f"{index} times {index + 7} is what? Explain every step of it."
        ask(server, "flood", messages=[{"role": "user", "content": content}], max_tokens=FLOOD_TOKENS)
        with lock:
            order.append("flood")

    threads = [threading.Thread(target=send, args=(index,)) for index in range(NUM_FLOOD)]
    for thread in threads:
        thread.start()
    wait_for(lambda: num_sequences(server) + len(order) >= NUM_FLOOD, "all of the flood", 120)
    for index in range(NUM_CHATS):
        ask(server, "chats", messages=[{"role": "user", "content": f"What is {index}?"}])
        with lock:
            order.append("chat")
    for thread in threads:
        thread.join()
    assert order.count("flood") == NUM_FLOOD
    last = max(index for index, kind in enumerate(order) if kind == "chat")
    num_before = order[:last].count("flood")
    assert num_before < NUM_FLOOD * 3 // 4, f"{num_before} requests of the flood were answered before the last chat"


def test_answers_name_the_priority_class_limited_by_the_key(server: Trunkline) -> None:
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
        answer = http.post(url, json=body | {"service_tier": asked}, headers=headers(tenant), timeout=600)
        assert answer.json()["usage"]["service_tier"] == got, (tenant, asked, answer.text)


def test_invalid_priority_class_is_refused(server: Trunkline) -> None:
    url = f"{server.base_url}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for fields, param in [
        ({"service_tier": "fast"}, "service_tier"),
        ({"service_tier": "flex", "priority": 1}, "priority"),
    ]:
        answer = http.post(url, json=body | fields, headers=headers("flood"), timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text

"""Fairness between tenants on a real server. The tests check the order of answers, not their duration."""

from __future__ import annotations

import threading

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


def ask(server: Trunkline, tenant: str, content: str, max_tokens: int) -> None:
    """Waits for the answer to a tenant's chat."""
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens}
    url = f"{server.base_url}/v1/chat/completions"
    answer = http.post(url, json=body, headers=headers(tenant), timeout=600)
    assert answer.status_code == 200, answer.text


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
        ask(server, "flood", content, FLOOD_TOKENS)
        with lock:
            order.append("flood")

    threads = [threading.Thread(target=send, args=(index,)) for index in range(NUM_FLOOD)]
    for thread in threads:
        thread.start()
    wait_for(lambda: num_sequences(server) + len(order) >= NUM_FLOOD, "all of the flood", 120)
    for index in range(NUM_CHATS):
        ask(server, "chats", f"What is {index}?", CHAT_TOKENS)
        with lock:
            order.append("chat")
    for thread in threads:
        thread.join()
    assert order.count("flood") == NUM_FLOOD
    last = max(index for index, kind in enumerate(order) if kind == "chat")
    num_before = order[:last].count("flood")
    assert num_before < NUM_FLOOD * 3 // 4, f"{num_before} requests of the flood were answered before the last chat"

"""A seed gives the same text in every dialect, whole or streamed, with or without concurrent requests."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import ALL_TIERS, Trunkline, http, sse_events

NUM_TOKENS = 20 if ALL_TIERS else 12
SEEDS = (1, 2**63 - 1) if ALL_TIERS else (2**63 - 1,)
NUM_OTHERS = 32 if ALL_TIERS else 8
TIMEOUT_S = 120.0

Events = list[dict[str, Any]]


class Dialect:
    """One route, with functions that build its body and read the text from its answer."""

    def __init__(
        self,
        path: str,
        body: Callable[[str, int], dict[str, Any]],
        whole: Callable[[dict[str, Any]], str],
        streamed: Callable[[dict[str, Any]], str],
        stream_path: str | None = None,
    ) -> None:
        self.path = path
        self.stream_path = stream_path or path
        self.body = body
        self.whole = whole
        self.streamed = streamed


def user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def sampled(seed: int, limit: str) -> dict[str, Any]:
    return {"seed": seed, "temperature": 0.9, "top_p": 0.95, limit: NUM_TOKENS}


def chat_delta(event: dict[str, Any]) -> str:
    return event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""


DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        lambda prompt, seed: {"messages": user(prompt)} | sampled(seed, "max_tokens"),
        lambda answer: answer["choices"][0]["message"]["content"],
        chat_delta,
    ),
    "completions": Dialect(
        "/v1/completions",
        lambda prompt, seed: {"prompt": prompt} | sampled(seed, "max_tokens"),
        lambda answer: answer["choices"][0]["text"],
        lambda event: event["choices"][0]["text"] if event["choices"] else "",
    ),
    "responses": Dialect(
        "/v1/responses",
        lambda prompt, seed: {"input": prompt, "store": False} | sampled(seed, "max_output_tokens"),
        lambda answer: answer["output"][0]["content"][0]["text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "messages": Dialect(
        "/v1/messages",
        lambda prompt, seed: {"messages": user(prompt)} | sampled(seed, "max_tokens"),
        lambda answer: answer["content"][0]["text"],
        lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
    ),
    "tgi": Dialect(
        "/generate",
        lambda prompt, seed: {
            "inputs": prompt,
            "parameters": sampled(seed, "max_new_tokens") | {"do_sample": True},
        },
        lambda answer: answer["generated_text"],
        lambda event: "" if event["token"]["special"] else event["token"]["text"],
        stream_path="/generate_stream",
    ),
    "ollama_chat": Dialect(
        "/api/chat",
        lambda prompt, seed: {"messages": user(prompt), "stream": False, "options": sampled(seed, "num_predict")},
        lambda answer: answer["message"]["content"],
        lambda event: event["message"]["content"],
    ),
    "ollama_generate": Dialect(
        "/api/generate",
        lambda prompt, seed: {"prompt": prompt, "raw": True, "stream": False, "options": sampled(seed, "num_predict")},
        lambda answer: answer["response"],
        lambda event: event["response"],
    ),
}


def ask(server: Trunkline, dialect: Dialect, prompt: str, seed: int) -> str:
    answer = http.post(server.base_url + dialect.path, json=dialect.body(prompt, seed), timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return dialect.whole(answer.json())


def ask_streamed(server: Trunkline, dialect: Dialect, prompt: str, seed: int) -> str:
    body = dialect.body(prompt, seed) | {"stream": True}
    url = server.base_url + dialect.stream_path
    with http.stream("POST", url, json=body, timeout=TIMEOUT_S) as answer:
        assert answer.status_code == 200, answer.read()
        is_lines = answer.headers["content-type"] == "application/x-ndjson"
        events = map(json.loads, answer.iter_lines()) if is_lines else sse_events(answer.iter_lines())
        return "".join(dialect.streamed(event) for event in events if event != "[DONE]")


def test_seed_gives_the_same_text_with_and_without_other_requests_in_every_dialect(server: Trunkline) -> None:
    def all_texts() -> dict[tuple[str, str], list[str]]:
        return {
            (name, kind): [asker(server, dialect, f"Tell of the number {seed}.", seed) for seed in SEEDS]
            for name, dialect in DIALECTS.items()
            for kind, asker in (("whole", ask), ("streamed", ask_streamed))
        }

    over, dialects = threading.Event(), itertools.cycle(DIALECTS.values())

    def other(number: int, dialect: Dialect) -> int:
        """Keeps the server busy, and returns the number of requests."""
        count = 0
        while not over.is_set():
            asker = (ask, ask_streamed)[number % 2]
            asker(server, dialect, f"Story {number} of {count} begins: " + "once " * (number * 7 % 90), number)
            count += 1
        return count

    alone = all_texts()
    with ThreadPoolExecutor(NUM_OTHERS) as pool:
        others = [pool.submit(other, number, next(dialects)) for number in range(NUM_OTHERS)]
        try:
            assert all_texts() == alone
        finally:
            over.set()
        assert sum(each.result() for each in others) >= NUM_OTHERS
    for name in DIALECTS:
        assert alone[name, "whole"] == alone[name, "streamed"], name
    # With the same prompt, seed and settings, all chat routes agree, and so do both completion routes.
    chats = ("chat", "responses", "messages", "ollama_chat")
    assert len({tuple(alone[name, "whole"]) for name in chats}) == 1, alone
    assert alone["completions", "whole"] == alone["tgi", "whole"] == alone["ollama_generate", "whole"]

"""Greedy answers to plain HTTP requests, for comparison with those that a client package returns."""

from __future__ import annotations

import json
from typing import Any

import httpx
from clients.given import KEY
from harness import Trunkline

HEADERS = {"authorization": f"Bearer {KEY}"}
TIMEOUT_S = 60.0


class Plain:
    """Sends requests to a server without a client package, and caches the answers."""

    def __init__(self, server: Trunkline) -> None:
        self._server = server
        self._answers: dict[str, dict[str, Any]] = {}

    def chat(self, messages: str | list[dict[str, Any]], max_tokens: int, **fields: Any) -> str:
        """Returns the text of the reply to `messages`; a string is one user message."""
        sent = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        answer = self._ask("/v1/chat/completions", {"messages": sent, "max_tokens": max_tokens} | fields)
        text = answer["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        assert text.strip()
        return text

    def complete(self, prompt: str | list[int], max_tokens: int) -> str:
        """Returns the text of `/v1/completions`."""
        text = self._ask("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})["choices"][0]["text"]
        assert isinstance(text, str)
        assert text.strip()
        return text

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([path, body])
        if key not in self._answers:
            url = self._server.base_url + path
            answer = httpx.post(url, json=body | {"temperature": 0}, headers=HEADERS, timeout=TIMEOUT_S)
            assert answer.status_code == 200, answer.text
            self._answers[key] = answer.json()
        return self._answers[key]

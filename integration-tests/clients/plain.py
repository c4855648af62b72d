"""Greedy answers to plain HTTP requests, with which the tests compare what a package makes of the same request."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from clients.given import KEY
from harness import Trunkline

HEADERS = {"authorization": f"Bearer {KEY}"}
TIMEOUT_S = 60.0


class Plain:
    """Asks a server without any package. Equal requests are asked once: their answers are equal, too."""

    def __init__(self, server: Trunkline) -> None:
        self._server = server
        self._answers: dict[str, dict[str, Any]] = {}

    def chat(self, messages: str | list[dict[str, Any]], max_tokens: int, **fields: Any) -> str:
        """The text of the reply to `messages`, or to one user message if they are a string."""
        text = self.choice(messages, max_tokens, **fields)["message"]["content"]
        assert isinstance(text, str)
        assert text.strip()
        return text

    def choice(self, messages: str | list[dict[str, Any]], max_tokens: int, **fields: Any) -> dict[str, Any]:
        """The first choice of `/v1/chat/completions`."""
        told = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        answer = self._ask("/v1/chat/completions", {"messages": told, "max_tokens": max_tokens} | fields)
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def complete(self, prompt: str | list[int], max_tokens: int) -> str:
        """The text of `/v1/completions`."""
        text = self._ask("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})["choices"][0]["text"]
        assert isinstance(text, str)
        assert text.strip()
        return text

    def metric(self, name: str) -> float:
        """A sample of `/metrics` that has no labels."""
        text = httpx.get(f"{self._server.base_url}/metrics", headers=HEADERS, timeout=TIMEOUT_S).raise_for_status().text
        [value] = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(value)

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([path, body])
        if key not in self._answers:
            url = self._server.base_url + path
            answer = httpx.post(url, json=body | {"temperature": 0}, headers=HEADERS, timeout=TIMEOUT_S)
            assert answer.status_code == 200, answer.text
            self._answers[key] = answer.json()
        return self._answers[key]


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of each tool call in a choice."""
    calls = choice["message"].get("tool_calls") or []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]

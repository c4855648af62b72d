"""A server with tenants and a client for each, for the benchmarks that compare tenants."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline, serving  # noqa: E402
from tenants import headers, write_keys  # noqa: E402

# Ids of ordinary tokens of the embedded model.
TOKEN_IDS = range(1_000, 40_000)


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    """Returns random tokens, so that nothing of the prompt is cached."""
    return rng.choices(TOKEN_IDS, k=num_tokens)


class Client:
    """One connection of one tenant."""

    def __init__(self, port: int, tenant: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = headers(tenant) | {"content-type": "application/json"}

    def ask(self, prompt: list[int], max_tokens: int) -> tuple[int, float]:
        """Streams a completion to its end. Returns its status and the seconds to its first event."""
        fields = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", json.dumps(fields), self.headers)
        answer = self.connection.getresponse()
        answer.read(1)
        seconds = time.perf_counter() - begin
        answer.read()
        return answer.status, seconds

    def ttft_s(self, prompt: list[int], max_tokens: int) -> float:
        """Returns the seconds to the first event. Exits if the request is refused."""
        status, seconds = self.ask(prompt, max_tokens)
        if status != 200:
            sys.exit(f"error: the server answered with status {status}")
        return seconds


@contextlib.contextmanager
def serving_tenants(*tenants: str, flags: tuple[str, ...] = ()) -> Iterator[Trunkline]:
    """Runs a server with these tenants inside a `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        write_keys(keys, {name: f'keys = "sk-{name}-0123456789abcdef"\n' for name in tenants})
        with serving("--api-keys", str(keys), *flags) as server:
            yield server

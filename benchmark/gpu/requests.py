"""Measures requests through HTTP: time to the first token, time between tokens, tokens per second."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

START_TIMEOUT_S = 180.0
REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


@dataclass
class Timing:
    """A reply's text, and the arrival of each token in seconds since the request."""

    tokens: list[float] = field(default_factory=list)
    text: str = ""

    @property
    def ttft(self) -> float:
        return self.tokens[0]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)]


@dataclass(frozen=True)
class Server:
    """A running server. `process` is the launcher and `start_s` the time until it was ready."""

    port: int
    process: subprocess.Popen[bytes]
    start_s: float


@contextlib.contextmanager
def serving(launcher: Path, model: Path, log: Path, arguments: Sequence[str]) -> Iterator[Server]:
    """Runs a server of the model on a free port inside a `with` block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(launcher), "serve", str(model), "--port", str(port), "--served-model-name", "bench", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            began = time.monotonic()
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
                time.sleep(POLL_S)
            yield Server(port, process, time.monotonic() - began)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(port: int) -> bool:
    """Returns whether the server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def prompt(seed: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Returns random ids of ordinary tokens."""
    numbers = random.Random(seed)
    return [numbers.randrange(2, vocab_size) for _ in range(num_tokens)]


def complete(port: int, token_ids: Sequence[int], num_tokens: int) -> Timing:
    """Streams a greedy completion of exactly `num_tokens` tokens."""
    body = {
        "model": "bench", "prompt": list(token_ids), "max_tokens": num_tokens, "temperature": 0, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
    timing, began = Timing(), time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"the server answered {response.status}: {response.read()[:300]!r}")
    for line in response:
        choices = json.loads(line[6:])["choices"] if line.startswith(b"data: {") else []
        if choices:
            timing.tokens.append(time.perf_counter() - began)
            timing.text += choices[0]["text"]
    connection.close()
    if not timing.tokens:
        raise RuntimeError("the stream ended without a token")
    return timing


def measure_load(port: int, vocab_size: int, num_requests: int, num_prompt: int, num_output: int) -> dict[str, Any]:
    """Measures concurrent requests with different prompts, and compares the first reply with the same request alone."""
    timings: list[Timing | BaseException] = []
    texts: dict[int, str] = {}

    def one(number: int) -> None:
        try:
            timing = complete(port, prompt(1000 + number, num_prompt, vocab_size), num_output)
            texts[number] = timing.text
            timings.append(timing)
        except (OSError, RuntimeError) as error:
            timings.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(num_requests)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    done = [timing for timing in timings if isinstance(timing, Timing)]
    if len(done) < num_requests:
        raise RuntimeError(f"{num_requests - len(done)} of {num_requests} requests failed: {timings[0]}")
    alone = complete(port, prompt(1000, num_prompt, vocab_size), num_output)
    gaps = [gap for timing in done for gap in timing.gaps]
    return {
        "requests": num_requests,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "tokens_per_s": num_requests * num_output / seconds,
        "ttft_ms": percentiles([timing.ttft for timing in done]),
        "itl_ms": percentiles(gaps),
        "same_alone": alone.text == texts[0],
    }


def measure_history(port: int, vocab_size: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Measures the time to the first token of prompts of each length, cold and cached."""
    rows = []
    for length in lengths:
        tokens = prompt(length, length, vocab_size)
        cold, warm = complete(port, tokens, 8), complete(port, tokens, 8)
        rows.append(
            {
                "tokens": length,
                "cold_ttft_ms": cold.ttft * 1e3,
                "warm_ttft_ms": warm.ttft * 1e3,
                "same_warm": cold.text == warm.text,
            }
        )
    return rows


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Returns p50 and p99 in milliseconds."""
    if len(seconds) < 2:
        return {"p50": seconds[0] * 1e3, "p99": seconds[0] * 1e3} if seconds else {}
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}

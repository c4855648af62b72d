"""Measures requests through HTTP: time to the first token, time between tokens, tokens per second."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from load import Stream, line, measure_all, streams
from peers.metrics import latencies

from gpu.process import end_with

# Less than any phase has that starts a server.
START_TIMEOUT_S = 70.0
REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


@dataclass(frozen=True)
class Server:
    """A running server. `process` is that of `launcher`, and `start_s` the time until it was ready."""

    port: int
    process: subprocess.Popen[bytes]
    start_s: float
    launcher: Path


@contextlib.contextmanager
def serving(launcher: Path, model: Path, arguments: Sequence[str]) -> Iterator[Server]:
    """Runs a server of the model on a free port inside a `with` block. Its log goes to this process's output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(launcher), "serve", str(model), "--port", str(port), "--served-model-name", "bench", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, preexec_fn=partial(end_with, os.getpid()))
    try:
        began = time.monotonic()
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                raise RuntimeError("the server did not start")
            time.sleep(POLL_S)
        yield Server(port, process, time.monotonic() - began, launcher)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
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
    return random.Random(seed).choices(range(2, vocab_size), k=num_tokens)


def complete(
    server: Server, prompts: Sequence[Sequence[int]], num_tokens: int, num_clients: int
) -> tuple[list[Stream], dict[str, Any]]:
    """Streams greedy completions of exactly `num_tokens` tokens each. Returns them in order, and the load's figures."""
    lines = [line(num_tokens, prompt=list(token_ids)) for token_ids in prompts]
    flags = ("--detailed", "--timeout", str(REQUEST_TIMEOUT_S))
    url = f"http://127.0.0.1:{server.port}"
    load = measure_all(url, lines, *flags, num_clients=num_clients, program=server.launcher)
    return streams(load), load["figures"]


def measure_load(
    server: Server, vocab_size: int, num_requests: int, num_prompt: int, num_output: int
) -> dict[str, Any]:
    """Measures concurrent requests with different prompts and compares the first reply with a single request's."""
    prompts = [prompt(1000 + number, num_prompt, vocab_size) for number in range(num_requests)]
    done, figures = complete(server, prompts, num_output, num_requests)
    (alone,), _ = complete(server, prompts[:1], num_output, 1)
    return {
        "requests": num_requests,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "tokens_per_s": figures["output_tokens_per_s"],
        **latencies(done),
        "same_alone": alone.text == done[0].text,
    }


def measure_history(server: Server, vocab_size: int, length: int) -> dict[str, Any]:
    """Measures the time to the first token of a prompt, cold and cached."""
    tokens = prompt(length, length, vocab_size)
    (cold, warm), _ = complete(server, [tokens, tokens], 8, 1)
    return {
        "tokens": length,
        "cold_ttft_ms": cold.ttft_s * 1e3,
        "warm_ttft_ms": warm.ttft_s * 1e3,
        "same_warm": cold.text == warm.text,
    }

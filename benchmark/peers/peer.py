"""The interface of a peer: installing it, starting it, and sending it prompts."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import free_port
from load import Load, LoadError, Stream, streams

from .child import Child, Died
from .environment import PEERS, Environment, clean_environ
from .workload import Prompt

POLL_S = 0.02


@dataclass(frozen=True)
class Setting:
    """The settings that a run gives to every peer."""

    gguf: Path
    threads: int
    start_limit_s: float


class HttpEndpoint:
    """A started peer: a server of OpenAI's API on a loopback port.

    `start_s` is the time from the start of its process to its first token. With `text_only`, prompts are sent as text,
    not as token ids.
    """

    def __init__(self, child: Child, port: int, model: str | None = None, *, text_only: bool = False) -> None:
        self.child = child
        self.base_url = f"http://127.0.0.1:{port}"
        self.start_s = 0.0
        self.model = model
        self._text_only = text_only

    def extra(self, max_tokens: int) -> dict[str, Any]:
        """Returns fields of the body of a request for exactly `max_tokens` tokens; null leaves a field out."""
        return {}

    def line(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """Returns a line of prompts: a greedy request for exactly `max_tokens` tokens."""
        ids = {} if self._text_only else {"prompt": prompt.ids}
        return {"prompt": prompt.text, "output_tokens": max_tokens, "extra_body": self.extra(max_tokens) | ids}

    def load(self, *flags: str, prompts: list[dict[str, Any]] | None = None, max_tokens: int = 1) -> Load:
        """Begins a load. `max_tokens` is the length of outputs that no line of the prompts gives."""
        model = ("--model", self.model) if self.model else ()
        # Words like `ignore_eos` that some servers refuse are null in `extra`.
        fields = ("--extra-body", json.dumps(self.extra(max_tokens)))
        return Load(self.base_url, "--detailed", *model, *fields, *flags, prompts=prompts)

    def batch(self, prompts: list[Prompt], max_tokens: int, limit_s: float) -> list[Stream]:
        """Streams all prompts at once, greedily, with exactly `max_tokens` output tokens each.

        Raises TimeoutError after `limit_s`, having aborted the requests. Raises LoadError if the peer fails.
        """
        number = str(len(prompts))
        flags = ("--concurrency", number, "--requests", number, "--timeout", str(limit_s))
        (load,) = self.load(*flags, prompts=[self.line(prompt, max_tokens) for prompt in prompts]).wait()
        raise_failures(load)
        return [self.checked(stream, max_tokens) for stream in streams(load)]

    def checked(self, stream: Stream, max_tokens: int) -> Stream:
        """Raises LoadError if the number of tokens is wrong, because a peer that stops early would look fast."""
        # A server that counts no tokens may send an event of its own for the end.
        fitting = (max_tokens,) if stream.prompt_tokens else (max_tokens, max_tokens + 1)
        if stream.num_tokens not in fitting:
            raise LoadError(f"the answer has {stream.num_tokens} output tokens, expected {max_tokens}")
        return stream

    def timed(self, prompt: Prompt, max_tokens: int, limit_s: float) -> float:
        """Returns the seconds that one request takes, without any other before it."""
        fields = {"prompt": prompt.text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        ids = {} if self._text_only else {"prompt": prompt.ids}
        named = {"model": self.model} if self.model else {}
        fields |= self.extra(max_tokens) | ids | named
        body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        url = f"{self.base_url}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            answer.read()
        return time.monotonic() - began

    def device_time(self) -> tuple[float, float]:
        """Returns the seconds in kernels and the number of steps so far, from Trunkline's metrics."""
        with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=10) as answer:
            samples = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
        name = "trunkline_step_duration_seconds"
        return float(samples[f"{name}_sum"]), float(samples[f"{name}_count"])

    def await_first_token(self, prompt: Prompt, limit_s: float) -> None:
        """Sends requests until a token arrives, because readiness differs between peers."""
        while True:
            self.child.check()
            with contextlib.suppress(OSError):
                self.timed(prompt, 1, limit_s)
                self.start_s = time.monotonic() - self.child.started
                return
            if time.monotonic() - self.child.started > limit_s:
                raise Died(f"no token within {limit_s:.0f} s of its start: {self.child.last_words()}")
            time.sleep(POLL_S)


def raise_failures(load: dict[str, Any]) -> None:
    """Raises TimeoutError if a request of a load took too long, and LoadError if one failed otherwise."""
    for failure in load["figures"]["failures"]:
        error = TimeoutError if failure["kind"] == "timeout" else LoadError
        raise error(f"{failure['count']} requests failed: {failure['title']}: {failure['example']}")


@dataclass(frozen=True)
class Peer(ABC):
    """One row of the comparison. `weights` names the format that the peer computes with."""

    name: str
    project: str
    weights: str
    environment: Environment | None
    note: str = field(default="", kw_only=True)
    only_loads: bool = field(default=False, kw_only=True)
    """True if it differs from another row only under load."""

    @abstractmethod
    def install(self, setting: Setting) -> None:
        """Installs everything that `command` needs, if it is not installed yet. Raises InstallError."""

    @abstractmethod
    def command(self, setting: Setting, port: int) -> Sequence[str | Path]:
        """Returns the command line of the server."""

    def environ(self, setting: Setting) -> dict[str, str]:
        return clean_environ()

    def endpoint(self, child: Child, port: int, setting: Setting) -> HttpEndpoint:
        return HttpEndpoint(child, port)

    def start(self, setting: Setting, first: Prompt) -> HttpEndpoint:
        """Starts the server on a free port and waits for its first token. Raises Died if it exits or takes too long."""
        port = free_port()
        child = Child(self.command(setting, port), self.log(), env=self.environ(setting))
        endpoint = self.endpoint(child, port, setting)
        try:
            endpoint.await_first_token(first, setting.start_limit_s)
        except BaseException:
            child.stop()
            raise
        return endpoint

    def log(self) -> Path:
        return PEERS / "logs" / f"{self.name}.log"


@contextlib.contextmanager
def started(peer: Peer, setting: Setting, first: Prompt) -> Iterator[HttpEndpoint]:
    endpoint = peer.start(setting, first)
    try:
        yield endpoint
    finally:
        endpoint.child.stop()

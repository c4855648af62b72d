"""The interface of a peer: installing it, starting it, and sending it prompts."""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client import HttpError, Stream, fields_of, post
from harness import free_port

from .child import Child, Died
from .environment import PEERS, Environment, clean_environ
from .workload import Prompt

Watch = Callable[[int], None]
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
        self.port = port
        self.start_s = 0.0
        self.model = model
        self._text_only = text_only

    def fields(self, max_tokens: int, **more: Any) -> dict[str, Any]:
        """Returns the body of a greedy streaming request for exactly `max_tokens` tokens."""
        return fields_of(max_tokens, **more) | ({"model": self.model} if self.model else {})

    async def complete(self, prompt: Prompt, max_tokens: int, watch: Watch | None = None) -> Stream:
        fields = self.fields(max_tokens, prompt=prompt.text if self._text_only else prompt.ids)
        return checked(await post("127.0.0.1", self.port, "/v1/completions", fields, watch), max_tokens)

    async def chat(self, messages: list[dict[str, str]], max_tokens: int) -> Stream:
        fields = self.fields(max_tokens, messages=messages)
        return checked(await post("127.0.0.1", self.port, "/v1/chat/completions", fields), max_tokens)

    def batch(self, prompts: list[Prompt], max_tokens: int, limit_s: float) -> list[Stream]:
        """Streams all prompts at once, greedily, with exactly `max_tokens` output tokens each.

        Raises TimeoutError after `limit_s`, having aborted the requests. Raises HttpError or Died if the peer fails.
        """

        async def all_streams() -> list[Stream]:
            async with asyncio.timeout(limit_s):
                return await asyncio.gather(*(self.complete(p, max_tokens) for p in prompts))

        return asyncio.run(all_streams())

    def device_time(self) -> tuple[float, float]:
        """Returns the seconds in kernels and the number of steps so far, from Trunkline's metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            samples = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
        name = "trunkline_step_duration_seconds"
        return float(samples[f"{name}_sum"]), float(samples[f"{name}_count"])

    def await_first_token(self, prompt: Prompt, limit_s: float) -> None:
        """Sends requests until a token arrives, because readiness differs between peers."""
        while True:
            self.child.check()
            with contextlib.suppress(OSError, HttpError):
                self.batch([prompt], 1, limit_s)
                self.start_s = time.monotonic() - self.child.started
                return
            if time.monotonic() - self.child.started > limit_s:
                raise Died(f"no token within {limit_s:.0f} s of its start: {self.child.last_words()}")
            time.sleep(POLL_S)


def checked(stream: Stream, max_tokens: int) -> Stream:
    """Raises HttpError if the number of tokens is wrong, because a peer that stops early would look fast."""
    if not stream.events:
        raise HttpError("the answer has no token")
    if stream.num_tokens != max_tokens:
        raise HttpError(f"the answer has {stream.num_tokens} output tokens, expected {max_tokens}")
    return stream


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

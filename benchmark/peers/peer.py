"""What a peer is: something to install, to start, and to send prompts to, through HTTP or without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
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
from .environment import PEERS, Environment
from .workload import Prompt

Watch = Callable[[int], None]
POLL_S = 0.02


@dataclass(frozen=True)
class Setting:
    """What a run gives to every peer."""

    gguf: Path
    threads: int
    start_limit_s: float


class Endpoint(ABC):
    """A started peer. `start_s`: seconds from the start of its process to its first token."""

    child: Child
    start_s: float

    @abstractmethod
    def batch(self, prompts: list[Prompt], max_tokens: int, limit_s: float) -> list[Stream]:
        """Streams all prompts at once, greedily, exactly `max_tokens` output tokens each.

        Raises:
            TimeoutError: after `limit_s`. What runs is dropped where the peer can do that, else the peer is stopped.
            HttpError, Died: when the peer fails.
        """


class HttpEndpoint(Endpoint):
    """Speaks the OpenAI dialect on a loopback port. `text_only`: prompts go as text, not as token ids."""

    def __init__(self, child: Child, port: int, model: str | None, *, text_only: bool) -> None:
        self.child = child
        self.port = port
        self.start_s = 0.0
        self.model = model
        self._text_only = text_only

    def fields(self, max_tokens: int, **asked: Any) -> dict[str, Any]:
        """The body of a request: greedy, streamed, exactly `max_tokens` tokens."""
        return fields_of(max_tokens, **asked) | ({"model": self.model} if self.model else {})

    async def complete(self, prompt: Prompt, max_tokens: int, watch: Watch | None = None) -> Stream:
        fields = self.fields(max_tokens, prompt=prompt.text if self._text_only else prompt.ids)
        return checked(await post("127.0.0.1", self.port, "/v1/completions", fields, watch), max_tokens)

    async def chat(self, messages: list[dict[str, str]], max_tokens: int) -> Stream:
        fields = self.fields(max_tokens, messages=messages)
        return checked(await post("127.0.0.1", self.port, "/v1/chat/completions", fields), max_tokens)

    def batch(self, prompts: list[Prompt], max_tokens: int, limit_s: float) -> list[Stream]:
        async def all_streams() -> list[Stream]:
            async with asyncio.timeout(limit_s):
                return await asyncio.gather(*(self.complete(p, max_tokens) for p in prompts))

        return asyncio.run(all_streams())

    def device_time(self) -> tuple[float, float]:
        """Seconds in kernels and number of steps so far, by Trunkline's own metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            samples = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
        name = "trunkline_step_duration_seconds"
        return float(samples[f"{name}_sum"]), float(samples[f"{name}_count"])

    def await_first_token(self, prompt: Prompt, limit_s: float) -> None:
        """Tries until a token comes: no peer's own word for ready is trusted."""
        while True:
            self.child.check()
            with contextlib.suppress(OSError, HttpError):
                self.batch([prompt], 1, limit_s)
                self.start_s = time.monotonic() - self.child.started
                return
            if time.monotonic() - self.child.started > limit_s:
                raise Died(f"no token within {limit_s:.0f} s of its start: {self.child.last_words()}")
            time.sleep(POLL_S)


class RawEndpoint(Endpoint):
    """A peer's engine in a process of its own, without HTTP: one JSON line asks, one answers. See inside/raw.py."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.start_s = 0.0
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.process.stdout is not None
        for line in self.child.process.stdout:
            # Libraries write to stdout too.
            if line.startswith(b'{"events":'):
                self._answers.put(line)
        self._answers.put(b"")

    def batch(self, prompts: list[Prompt], max_tokens: int, limit_s: float) -> list[Stream]:
        assert self.child.process.stdin is not None
        line = json.dumps({"prompts": [p.ids for p in prompts], "max_tokens": max_tokens}).encode()
        try:
            self.child.process.stdin.write(line + b"\n")
            self.child.process.stdin.flush()
            answer = self._answers.get(timeout=limit_s)
        except BrokenPipeError as broken:
            raise Died(f"takes no prompt any more: {self.child.last_words()}") from broken
        except queue.Empty as empty:
            # An engine cannot be told to drop what it computes.
            self.child.stop()
            raise TimeoutError from empty
        if not answer:
            self.child.process.wait()
            raise Died(f"ended with {self.child.process.returncode}: {self.child.last_words()}")
        return [checked(Stream(0.0, events), max_tokens) for events in json.loads(answer)["events"]]


def checked(stream: Stream, max_tokens: int) -> Stream:
    """A peer that stops early would look fast."""
    if not stream.events:
        raise HttpError("an answer without a token")
    if stream.num_tokens != max_tokens:
        raise HttpError(f"{stream.num_tokens} output tokens instead of {max_tokens}")
    return stream


@dataclass(frozen=True)
class Peer(ABC):
    """One row of the comparison. `project`: which software; `weights`: what it computes with."""

    name: str
    project: str
    through: str
    weights: str
    environment: Environment | None
    note: str = field(default="", kw_only=True)

    @abstractmethod
    def install(self, setting: Setting) -> None:
        """Makes all that `start` needs; quick when it is there already.

        Raises:
            InstallError: with the reason.
        """

    @abstractmethod
    def start(self, setting: Setting, first: Prompt) -> Endpoint:
        """Starts it and waits for its first token.

        Raises:
            Died: when it ended or the time was up.
        """

    @property
    def raw(self) -> bool:
        return self.through == "raw"

    def log(self) -> Path:
        return PEERS / "logs" / f"{self.name}.log"


@contextlib.contextmanager
def started(peer: Peer, setting: Setting, first: Prompt) -> Iterator[Endpoint]:
    endpoint = peer.start(setting, first)
    try:
        yield endpoint
    finally:
        endpoint.child.stop()


def start_http(
    peer: Peer,
    setting: Setting,
    first: Prompt,
    command: Callable[[int], Sequence[str | Path]],
    env: dict[str, str],
    *,
    kind: type[HttpEndpoint] = HttpEndpoint,
    model: str | None = None,
    text_only: bool = False,
) -> HttpEndpoint:
    """Starts an HTTP server on a free port; `command` makes its command line from the port, `model` names it there."""
    port = free_port()
    child = Child(command(port), peer.log(), env=env)
    endpoint = kind(child, port, model, text_only=text_only)
    try:
        endpoint.await_first_token(first, setting.start_limit_s)
    except BaseException:
        child.stop()
        raise
    return endpoint


def start_raw(
    peer: Peer, setting: Setting, first: Prompt, command: Sequence[str | Path], env: dict[str, str]
) -> RawEndpoint:
    child = Child(command, peer.log(), env=env, pipes=True)
    endpoint = RawEndpoint(child)
    try:
        endpoint.batch([first], 1, setting.start_limit_s)
    except BaseException:
        child.stop()
        raise
    endpoint.start_s = time.monotonic() - child.started
    return endpoint

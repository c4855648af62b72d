"""A light streaming client, so that the client's own work does not distort the measurement.

It reads raw sockets, takes one timestamp per arrival, and parses events only after the stream has ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stream:
    """One streamed answer. Times are seconds of the monotonic clock; `events` has the arrival of each output token."""

    sent: float
    events: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def ttft_s(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.events[0] - self.sent

    @property
    def e2e_s(self) -> float:
        """Seconds from sending the request to its last token."""
        return self.events[-1] - self.sent

    @property
    def itl_s(self) -> list[float]:
        """Seconds between arrivals of output tokens."""
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]

    @property
    def num_tokens(self) -> int:
        """Output tokens as counted by the server, or else the number of events."""
        return int(self.usage.get("completion_tokens") or len(self.events))

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (E2E - TTFT) / (N - 1)."""
        return (self.e2e_s - self.ttft_s) / max(self.num_tokens - 1, 1)


class Receiver(asyncio.Protocol):
    """Parses an HTTP/1.1 response into status, body (chunked or not) and timestamped events."""

    def __init__(self, watch: Callable[[int], None] | None) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.body = bytearray()
        self.events: list[tuple[float, bytes]] = []
        self._watch = watch
        self._raw = bytearray()
        self._in_head = True
        self._chunked = False
        self._body_left = -1
        self._chunk_left = 0
        self._event_start = 0

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._raw += data
        if self._in_head and not self._read_head():
            return
        if self._chunked:
            self._read_chunks()
        else:
            self.body += self._raw
            self._raw.clear()
        self._split_events(now)
        if self._body_left >= 0 and len(self.body) >= self._body_left:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.ended.done():
            self.ended.set_exception(exc)
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            if name.lower() == "transfer-encoding":
                self._chunked = "chunked" in value.lower()
            elif name.lower() == "content-length":
                self._body_left = int(value)
        del self._raw[: end + 4]
        self._in_head = False
        return True

    def _read_chunks(self) -> None:
        raw, position = self._raw, 0
        while position < len(raw):
            if self._chunk_left == 0:
                end = raw.find(b"\r\n", position)
                if end < 0:
                    break
                size = int(raw[position:end].split(b";")[0] or b"0", 16)
                position = end + 2
                if size == 0:
                    self._end()
                    break
                self._chunk_left = size + 2
            take = min(self._chunk_left, len(raw) - position)
            # The last two bytes of a chunk are a line end.
            payload = max(min(take, self._chunk_left - 2), 0)
            self.body += raw[position : position + payload]
            position += take
            self._chunk_left -= take
        del raw[:position]

    def _split_events(self, now: float) -> None:
        while True:
            end = self.body.find(b"\n", self._event_start)
            if end < 0:
                return
            line = bytes(self.body[self._event_start : end]).rstrip(b"\r")
            self._event_start = end + 1
            if line.startswith((b"data: {", b"data:{")):
                self.events.append((now, line[5:]))
                if self._watch is not None:
                    self._watch(len(self.events))


class HttpError(RuntimeError):
    """A server answered with an error or without a token."""


async def post(
    host: str, port: int, path: str, fields: dict[str, Any], watch: Callable[[int], None] | None = None
) -> Stream:
    """Posts one streaming request and reads its events. Calls `watch` with the number of events after each."""
    body = json.dumps(fields).encode()
    head = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"]
    head += [f"Content-Length: {len(body)}", "", ""]
    loop = asyncio.get_running_loop()
    sent = time.monotonic()
    transport, receiver = await loop.create_connection(lambda: Receiver(watch), host, port)
    try:
        transport.write("\r\n".join(head).encode() + body)
        await receiver.ended
    finally:
        transport.close()
    if receiver.status != 200:
        raise HttpError(f"{path} answered {receiver.status}: {bytes(receiver.body[:500]).decode(errors='replace')}")
    return parse(sent, receiver.events)


def parse(sent: float, events: list[tuple[float, bytes]]) -> Stream:
    """Assembles the answer from a stream's events. Raises HttpError if one of them is an error."""
    result = Stream(sent=sent)
    texts = []
    for when, data in events:
        event = json.loads(data)
        if "error" in event:
            raise HttpError(f"the stream broke off with an error: {data[:500].decode(errors='replace')}")
        result.usage = event.get("usage") or result.usage
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            text = choice.get("text", delta.get("content"))
            # A token has no text if its bytes are not yet a character or if it is special. A role is not a token.
            silent_token = text == "" and "role" not in delta and choice.get("finish_reason") is None
            if text or silent_token:
                result.events.append(when)
                texts.append(text or "")
    result.text = "".join(texts)
    return result


def fields_of(max_tokens: int, **more: Any) -> dict[str, Any]:
    """Returns the fields of a greedy streaming request for exactly `max_tokens` tokens, with usage at the end."""
    fixed = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return fixed | {"max_tokens": max_tokens} | more


async def stream(host: str, port: int, prompt: list[int], max_tokens: int) -> Stream:
    """Streams /v1/completions greedily for exactly `max_tokens` tokens."""
    return await post(host, port, "/v1/completions", fields_of(max_tokens, prompt=prompt))

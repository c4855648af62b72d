"""A light streaming client: raw sockets, one timestamp per event, so that the client does not become the load."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stream:
    """One streamed answer. Times are seconds of the monotonic clock."""

    sent: float
    events: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.events[0] - self.sent

    @property
    def itl_s(self) -> list[float]:
        """Seconds between output tokens."""
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]


async def stream(host: str, port: int, prompt: list[int], max_tokens: int) -> Stream:
    """Streams /v1/completions greedily for exactly `max_tokens` tokens."""
    fields = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = json.dumps(fields).encode()
    head = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"]
    head += [f"Content-Length: {len(body)}", "", ""]
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    result = Stream(sent=time.monotonic())
    writer.write("\r\n".join(head).encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status.decode().strip()}: {(await reader.read()).decode()}")
    async for line in reader:
        if line.startswith(b'data: {"'):
            if b'"usage":{' in line:
                result.usage = json.loads(line[6:])["usage"]
            else:
                result.events.append(time.monotonic())
    writer.close()
    return result

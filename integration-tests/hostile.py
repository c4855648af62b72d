"""Clients that harm a server as far as they can. None may cost another client its answer."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import api_places
import httpx
from api_table import api_pages, read_rows
from faults import Faults
from harness import ROOT, http
from tenants import headers

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]
NUMBERS = [row for row in read_rows(api_pages(ROOT)) if row.range() or row.allowed.startswith("integer")]
# They are text, because Python would write these numbers in another way.
EDGES = "0 -0.0 1e-40 1e-320 -1 0.5 2147483648 9007199254740993 18446744073709551616 1e308 1e309"
# The places of fields that are numbers.
PLACES = [place for place in api_places.PLACES if any(row.table == place.table for row in NUMBERS)]
# Characters with more than one token each. Their tokens fill the buffers of a connection several times.
RARE = "\u0f40\u1200\u2e80" * 10_000
# Unlike the default, reads no certificates, which takes 30 ms.
UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNCHECKED.check_hostname, UNCHECKED.verify_mode = False, ssl.CERT_NONE


class Hostile:
    """One such client, which draws the next harm from its own generator."""

    def __init__(self, faults: Faults, draw: random.Random) -> None:
        self.faults, self.server, self.draw = faults, faults.server, draw
        self.done = Counter[str]()
        self._harms: list[Callable[[], None]] = [
            *(self.leave, self.send_half, self.read_slowly, self.edge, self.opaque),
            *(self.bomb, self.giant, self.foreign, self.fresh),
        ]

    def act(self) -> None:
        harm = self.draw.choice(self._harms)
        self.faults.attempt(harm)
        self.faults.over.wait(self.draw.uniform(0, 0.5))
        self.done[harm.__name__] += 1

    def _post(self, path: str, body: Any, tenant: str = "bombs") -> httpx.Response:
        """Posts a body, JSON or text, and fails if the answer blames the server for it."""
        content = body if isinstance(body, str) else json.dumps(body)
        fields = headers(tenant) | {"content-type": "application/json"}
        answer = http.post(self.server.base_url + path, content=content, headers=fields, timeout=300)
        is_refusal = answer.status_code == 503 and "retry-after" in answer.headers
        is_refusal |= answer.status_code == 504 and '"timeout"' in content
        assert answer.status_code < 500 or is_refusal, f"{path} {content[:300]}: {answer.status_code} {answer.text}"
        return answer

    @contextlib.contextmanager
    def _connection(self, path: str, body: Any, part: float = 1.0) -> Any:
        """Sends the first `part` of a request over a connection with a small buffer."""
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in headers("bombs").items()]
        with socket.socket() as plain:
            plain.settimeout(60)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect(("127.0.0.1", self.server.port))
            with UNCHECKED.wrap_socket(plain) as connection:
                connection.sendall("\r\n".join([*lines, "", ""]).encode() + data[: int(len(data) * part)])
                yield connection

    def leave(self) -> None:
        """Leaves a stream after some bytes, at times without a farewell."""
        body = {"messages": USER, "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 2}
        with self._connection(CHAT, body) as connection:
            connection.recv(self.draw.choice([1, 64, 4096]))
            if self.draw.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def send_half(self) -> None:
        """Closes the connection in the middle of a body."""
        with self._connection(CHAT, {"messages": USER * 100}, self.draw.random()):
            pass

    def read_slowly(self) -> None:
        """Reads little of a whole answer that fills all buffers."""
        with self._connection("/tokenize", {"inputs": RARE}) as connection:
            connection.recv(1)
            self.faults.over.wait(self.draw.uniform(0, 2))
            connection.recv(4096)

    def edge(self) -> None:
        """Sends two numbers at the edges of their types."""
        place = self.draw.choice(PLACES)
        body = json.loads(place.body)
        holder = api_places.holder_of(body, place.holder)
        names = [row.field for row in NUMBERS if row.table == place.table and row.field not in holder]
        for name in self.draw.sample(names, min(2, len(names))):
            holder[name] = f"EDGE {self.draw.choice(EDGES.split())}"
        self._post(place.route.format(id="x"), re.sub(r'"EDGE ([^"]+)"', r"\1", json.dumps(body)))

    def opaque(self) -> None:
        """Sends a megabyte of small values where the server expects a few."""
        field = self.draw.choice(["metadata", "chat_template_kwargs", "tools", "logit_bias", "xyzzy"])
        zeros = "[" + "0," * (1 << 19) + "0]"
        self._post(CHAT, f'{{"messages": {json.dumps(USER)}, "max_tokens": 1, "{field}": {{"x": {zeros}}}}}')

    def bomb(self) -> None:
        """Sends a schema whose compilation takes exponential time, each with another letter."""
        letter = self.draw.choice("abcdefghijklmnopqrstuvwxyz")
        patterns = [{"type": "string", "pattern": f"{letter}.{{{index}}}!"} for index in range(19)]
        answer = self._post(CHAT, {"messages": USER, "max_tokens": 1, "guided_json": {"allOf": patterns}})
        assert answer.status_code in (400, 503), answer.text

    def giant(self) -> None:
        """Sends a chat that takes long to render or tokenize."""
        body: dict[str, Any] = {"messages": USER, "max_tokens": 1}
        if self.draw.random() < 0.5:
            body["messages"] = [{"role": "user", "content": ""}] * 16_000
        else:
            function = {"name": "f", "description": "word " * 30_000, "parameters": {"type": "object"}}
            body["tools"] = [{"type": "function", "function": function}]
        answer = self._post(CHAT, body)
        assert answer.status_code in (200, 400, 503), f"{answer.status_code} {answer.text}"

    def foreign(self) -> None:
        """Calls as a web page of another site would."""
        site = {"origin": "https://example.com"} if self.draw.random() < 0.5 else {"host": "example.com"}
        answer = http.post(self.server.base_url + CHAT, json={"messages": USER}, headers=site, timeout=300)
        assert answer.status_code == 401, answer.text
        assert "access-control-allow-origin" not in answer.headers

    def fresh(self) -> None:
        """Sends a prompt that nobody sent before, so that others' blocks are evicted and the disk has to write."""
        prompt = [self.draw.randrange(1000, 5000) for _ in range(200)]
        self._post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}, tenant="flood")

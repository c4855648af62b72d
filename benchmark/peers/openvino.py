"""OpenVINO GenAI's continuous batching pipeline on the GGUF, through a thin HTTP server."""

from __future__ import annotations

from pathlib import Path

from .environment import INSIDE, Environment
from .peer import Peer, Setting
from .workload import MAX_SEQUENCES

ENVIRONMENT = Environment("openvino")
# K and V of 32 conversations of 6,000 tokens fit even with 16 bits per element; the default is 8 bits.
CACHE_GB = 5


class Server(Peer):
    def install(self, setting: Setting) -> None:
        if not ENVIRONMENT.installed():
            ENVIRONMENT.install()
            ENVIRONMENT.done()

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        options = (CACHE_GB, MAX_SEQUENCES, setting.threads, port)
        return [ENVIRONMENT.python, INSIDE / "openvino_server.py", setting.gguf, *map(str, options)]


PEERS = [Server("openvino", "OpenVINO GenAI", "Q4_1", ENVIRONMENT, note="thin loop, inside/openvino_server.py")]

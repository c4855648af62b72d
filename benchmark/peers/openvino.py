"""OpenVINO GenAI's continuous batching pipeline on the GGUF, through a thin HTTP server."""

from __future__ import annotations

from .environment import INSIDE, Environment, clean_environ
from .peer import HttpEndpoint, Peer, Setting, start_http
from .workload import MAX_SEQUENCES, Prompt

ENVIRONMENT = Environment("openvino")
# K and V of 32 conversations of 6,000 tokens fit even with 16 bits per element; the default is 8 bits.
CACHE_GB = 5


class Server(Peer):
    def install(self, setting: Setting) -> None:
        if not ENVIRONMENT.installed():
            ENVIRONMENT.install()
            ENVIRONMENT.done()

    def start(self, setting: Setting, first: Prompt) -> HttpEndpoint:
        command = [ENVIRONMENT.python, INSIDE / "openvino_server.py", setting.gguf]
        options = [str(CACHE_GB), str(MAX_SEQUENCES), str(setting.threads)]
        return start_http(self, setting, first, lambda port: [*command, *options, str(port)], clean_environ())


PEERS = [Server("openvino", "OpenVINO GenAI", "Q4_1", ENVIRONMENT, note="thin loop, inside/openvino_server.py")]

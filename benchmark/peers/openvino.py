"""OpenVINO GenAI's continuous batching pipeline on the GGUF, called directly and through a thin HTTP server."""

from __future__ import annotations

from pathlib import Path

from .environment import INSIDE, Environment, clean_environ
from .peer import HttpEndpoint, Peer, RawEndpoint, Setting, start_http, start_raw
from .workload import MAX_SEQUENCES, Prompt

ENVIRONMENT = Environment("openvino")
# K and V of 32 conversations of 6,000 tokens fit even with 16 bits per element; the default is 8 bits.
CACHE_GB = 5


def install() -> None:
    if not ENVIRONMENT.installed():
        ENVIRONMENT.install()
        ENVIRONMENT.done()


def options(setting: Setting) -> list[str]:
    return [str(setting.gguf), str(CACHE_GB), str(MAX_SEQUENCES), str(setting.threads)]


class Server(Peer):
    def install(self, setting: Setting) -> None:
        install()

    def start(self, setting: Setting, first: Prompt) -> HttpEndpoint:
        script = INSIDE / "openvino_server.py"
        return start_http(
            self,
            setting,
            first,
            lambda port: [ENVIRONMENT.python, script, *options(setting), str(port)],
            clean_environ(),
        )


class Raw(Peer):
    def install(self, setting: Setting) -> None:
        install()

    def start(self, setting: Setting, first: Prompt) -> RawEndpoint:
        command: list[str | Path] = [ENVIRONMENT.python, INSIDE / "openvino_raw.py", *options(setting)]
        return start_raw(self, setting, first, command, clean_environ())


PEERS = [
    Server("openvino", "OpenVINO GenAI", "HTTP", "Q4_1", ENVIRONMENT, note="thin loop, inside/openvino_server.py"),
    Raw("openvino-raw", "OpenVINO GenAI", "raw", "Q4_1", ENVIRONMENT),
]

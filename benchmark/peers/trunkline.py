"""This checkout, through `trunkline serve`."""

from __future__ import annotations

from harness import TRUNKLINE

from .environment import InstallError, clean_environ
from .peer import HttpEndpoint, Peer, Setting, start_http
from .workload import KV_TOKENS, Prompt


class Trunkline(Peer):
    def install(self, setting: Setting) -> None:
        if not TRUNKLINE.is_file():
            raise InstallError("not built; hint: make build")

    def start(self, setting: Setting, first: Prompt) -> HttpEndpoint:
        options = ["--threads", str(setting.threads), "--max-batch-total-tokens", str(KV_TOKENS)]
        return start_http(
            self,
            setting,
            first,
            lambda port: [TRUNKLINE, "serve", setting.gguf, "--port", str(port), *options],
            clean_environ(),
        )


PEERS = [Trunkline("trunkline", "trunkline", "HTTP", "Q4_1", None)]

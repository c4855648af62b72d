"""This checkout, through `trunkline serve`."""

from __future__ import annotations

from dataclasses import dataclass

from harness import TRUNKLINE

from .environment import InstallError, clean_environ
from .peer import HttpEndpoint, Peer, Setting, start_http
from .workload import KV_TOKENS, Prompt


@dataclass(frozen=True)
class Trunkline(Peer):
    flags: tuple[str, ...] = ()
    """More flags of `trunkline serve`."""

    def install(self, setting: Setting) -> None:
        if not TRUNKLINE.is_file():
            raise InstallError("not built; hint: make build")

    def start(self, setting: Setting, first: Prompt) -> HttpEndpoint:
        options = ["--threads", str(setting.threads), "--max-batch-total-tokens", str(KV_TOKENS), *self.flags]
        return start_http(
            self,
            setting,
            first,
            lambda port: [TRUNKLINE, "serve", setting.gguf, "--port", str(port), *options],
            clean_environ(),
        )


PEERS = [
    Trunkline("trunkline", "trunkline", "HTTP", "Q4_1", None),
    Trunkline(
        "trunkline-large-steps",
        "trunkline",
        "HTTP",
        "Q4_1",
        None,
        note="steps that continue streams are not sized by time",
        only_loads=True,
        flags=("--target-itl-ms", "0"),
    ),
]

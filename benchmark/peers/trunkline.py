"""This checkout, through `trunkline serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness import TRUNKLINE

from . import transformers
from .environment import InstallError
from .peer import Peer, Setting
from .safetensors import convert, folder_of
from .workload import KV_TOKENS


@dataclass(frozen=True)
class Trunkline(Peer):
    flags: tuple[str, ...] = ()
    """More flags of `trunkline serve`."""

    def install(self, setting: Setting) -> None:
        if not TRUNKLINE.is_file():
            raise InstallError("not built; hint: make build")
        if self.weights == "bf16":
            convert(setting.gguf, transformers.ENVIRONMENT)

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        model = folder_of(setting.gguf) if self.weights == "bf16" else setting.gguf
        options = ["--threads", str(setting.threads), "--max-batch-total-tokens", str(KV_TOKENS), *self.flags]
        # The replies repeat words, so drafts would measure the text. No other peer drafts here.
        options += ["--speculate", "off"]
        return [TRUNKLINE, "serve", model, "--port", str(port), *options]


PEERS = [
    Trunkline("trunkline", "trunkline", "Q4_1", None),
    Trunkline("trunkline-bf16", "trunkline", "bf16", None),
    Trunkline(
        "trunkline-large-steps",
        "trunkline",
        "Q4_1",
        None,
        note="steps that continue streams are not sized by time",
        only_loads=True,
        flags=("--target-itl-ms", "0"),
    ),
]

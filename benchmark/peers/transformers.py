"""transformers in bf16, as its own server with continuous batching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .child import Child
from .environment import Environment, clean_environ
from .peer import HttpEndpoint, Peer, Setting
from .safetensors import convert, folder_of
from .workload import KV_TOKENS

ENVIRONMENT = Environment("transformers")
BLOCK_TOKENS = 256
STEP_TOKENS = 2048


def install(setting: Setting) -> None:
    if not ENVIRONMENT.installed():
        ENVIRONMENT.install()
        ENVIRONMENT.done()
    convert(setting.gguf, ENVIRONMENT)


class Endpoint(HttpEndpoint):
    """A server that refuses unknown fields, and ignores the end token only through its generation config."""

    def extra(self, max_tokens: int) -> dict[str, Any]:
        settings = {"max_new_tokens": max_tokens, "do_sample": False, "eos_token_id": -1, "pad_token_id": 2}
        unknown = dict.fromkeys(("temperature", "stream_options", "ignore_eos"))
        return {"generation_config": json.dumps(settings)} | unknown


class Server(Peer):
    def install(self, setting: Setting) -> None:
        install(setting)

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        program = ENVIRONMENT.python.parent / "transformers"
        options = ["--device", "cpu", "--dtype", "bfloat16", "--continuous-batching"]
        # By default it uses a share of all memory and steps of 8,192 tokens.
        options += ["--cb-num-blocks", str(KV_TOKENS // BLOCK_TOKENS), "--cb-max-batch-tokens", str(STEP_TOKENS)]
        return [program, "serve", folder_of(setting.gguf), "--host", "127.0.0.1", "--port", str(port), *options]

    def environ(self, setting: Setting) -> dict[str, str]:
        return clean_environ() | {"OMP_NUM_THREADS": str(setting.threads)}

    def endpoint(self, child: Child, port: int, setting: Setting) -> HttpEndpoint:
        return Endpoint(child, port, str(folder_of(setting.gguf)), text_only=True)


PEERS = [Server("transformers", "transformers", "bf16", ENVIRONMENT, note="transformers serve")]

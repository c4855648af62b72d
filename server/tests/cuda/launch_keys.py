"""The keys by which Triton finds compiled kernels, of launches that do nothing, as on a card.

Run as a program without TRITON_INTERPRET, it prints how many keys `gpu.dry` compiles for a format of K and V, and the
kernels that each of `SERVERS` launches with other keys.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from gpu import dry
from gpu.steps import Sequences
from tests.cuda.compiled import HOPPER
from triton.runtime.jit import JITFunction
from trunkline_server._proto.shard_pb2 import TokenBias
from trunkline_server.backends.interface import sampling_params

# Servers of `make gpu-check`: that of `start`, and one of `traffic`. The rows of block tables of the last one have a
# length that is not a multiple of 16, for which Triton compiles other kernels.
SERVERS: dict[str, dict[str, Any]] = {
    "start": {"max_batch_total_tokens": 4096},
    "traffic": {"max_batch_total_tokens": 200_000, "max_step_tokens": 1000},
    "twenty blocks": {"max_batch_total_tokens": 20 * 64},
}
SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.01, "seed": 5, "logprobs": True, "num_top_logprobs": 3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"logit_bias": [TokenBias(token_id=5, bias=4.0)]},
)


def _serve(kv_cache_dtype: str, sizes: dict[str, Any]) -> None:
    """Starts a backend of more layers, and runs steps of one sequence and of some, sampled in different ways."""
    backend, shape = dry.built("small", 4, kv_cache_dtype=kv_cache_dtype, **sizes)
    for count in (1, 4):
        sequences = Sequences(backend)
        for number in range(count):
            params = sampling_params(**SAMPLED[(number + count) % len(SAMPLED)])
            sequences.start_random(number, 1 + 37 * number, shape.vocab_size, params)
            sequences.prefill(number)
        sequences.decode(2)
        sequences.end()


class _Cache:
    """Stands in for Triton's compiler. misses: the kernels and keys that it was asked for, each once."""

    def __init__(self) -> None:
        self.misses: list[tuple[str, str]] = []

        def compile_(kernel: Any, key: str, *_: object, **__: object) -> object:
            return self._compile(kernel, key)

        JITFunction._do_compile = compile_  # type: ignore[method-assign]

    def _compile(self, kernel: Any, key: str) -> object:
        """A key is made of the types, alignments and constants of arguments, and the options of a launch."""
        self.misses.append((kernel.__name__, key))
        idle = kernel.device_caches[0][0][key] = SimpleNamespace(
            launch_metadata=_nothing, run=_nothing, function=None, packed_metadata=None
        )
        return idle


def _nothing(*_: object) -> None:
    pass


def _main(kv_cache_dtype: str) -> None:
    dry.as_on(HOPPER)
    cache = _Cache()
    dry.launch_steps("small", kv_cache_dtype, "bf16")
    known, others = len(cache.misses), {}
    for name, sizes in SERVERS.items():
        cache.misses.clear()
        _serve(kv_cache_dtype, sizes)
        others[name] = sorted(kernel for kernel, _ in cache.misses)
    print(json.dumps({"known": known, "others": others}))


if __name__ == "__main__":
    _main(sys.argv[1])

"""Trunkline's targets relative to its peers, and whether a run reaches them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .store import Store

# The rows that targets compare, all of which use HTTP.
US, LLAMACPP, OPENVINO = "trunkline", "llamacpp", "openvino"


@dataclass(frozen=True)
class Target:
    """A required and a desired bound of one figure.

    `more` is true if more is better. `value` computes the figure, or None without the measurements. `unit` is appended
    to figures.
    """

    title: str
    at_least: float
    aim: float
    unit: str
    more: bool
    value: Callable[[Store], float | None]

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        for bound, word in ((self.aim, "aim reached"), (self.at_least, "reached")):
            if (value >= bound) if self.more else (value <= bound):
                return word
        return "not reached"


def median(store: Store, peer: str, workload: str, metric: str) -> float | None:
    values = store.values(peer, workload, metric)
    return statistics.median(values) if values else None


def times(peer: str, workload: str, metric: str = "tokens_per_s") -> Callable[[Store], float | None]:
    """Returns a function for how many times better Trunkline is, by a rate or a duration (`_ms`)."""

    def value(store: Store) -> float | None:
        ours, theirs = median(store, US, workload, metric), median(store, peer, workload, metric)
        if not ours or not theirs:
            return None
        return theirs / ours if metric.endswith("_ms") else ours / theirs

    return value


def own(workload: str, metric: str) -> Callable[[Store], float | None]:
    return lambda store: median(store, US, workload, metric)


def over_weights(store: Store) -> float | None:
    """Returns the resident memory of a new server minus its weights. Almost none of its KV pool is resident."""
    memory = median(store, US, "start", "memory_mb")
    return None if memory is None else memory - float(store.settings["weights_mb"])


TARGETS = [
    Target("decode, one stream, by llama.cpp", 1.8, 2.1, " ×", True, times(LLAMACPP, "decode-1")),
    Target("decode, 8 streams, by OpenVINO", 2.3, 2.8, " ×", True, times(OPENVINO, "decode-8")),
    Target("decode, 32 streams, by OpenVINO", 2.0, 2.4, " ×", True, times(OPENVINO, "decode-32")),
    Target("prefill of 512, by OpenVINO", 1.6, 2.0, " ×", True, times(OPENVINO, "prefill-512")),
    Target("prefill of 2,048, by OpenVINO", 1.6, 2.0, " ×", True, times(OPENVINO, "prefill-2048")),
    Target("6,000-token history, cold, by OpenVINO", 1.7, 2.0, " ×", True, times(OPENVINO, "history", "cold_ttft_ms")),
    Target("the same + 32 tokens, TTFT", 40, 25, " ms", False, own("history", "warm_ttft_ms")),
    Target("process start to first token", 1.5, 0.7, " s", False, own("start", "start_s")),
    Target("memory over weights + KV pool", 150, 80, " MB", False, over_weights),
    Target("time per step outside kernels, one stream", 5, 2, " %", False, own("overhead", "added_percent")),
    Target("idle CPU", 1, 1, " %", False, own("start", "idle_cpu_percent")),
]

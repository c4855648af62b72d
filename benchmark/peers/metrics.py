"""Metrics of streams by their standard definitions, with times in milliseconds and rates per second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from load import Stream


@dataclass(frozen=True)
class Slo:
    """The bounds that a request must meet to count as good."""

    ttft_ms: float
    tpot_ms: float

    def met(self, stream: Stream) -> bool:
        return stream.ttft_s * 1e3 <= self.ttft_ms and stream.tpot_s * 1e3 <= self.tpot_ms


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolates linearly between the two nearest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Returns p50, p90 and p99 in ms of durations in seconds, or nothing if there are none."""
    if not seconds:
        return {}
    return {f"{name}_p{p}_ms": percentile(seconds, p) * 1e3 for p in (50, 90, 99)}


def latencies(streams: Sequence[Stream]) -> dict[str, float]:
    return (
        percentiles("ttft", [s.ttft_s for s in streams])
        | percentiles("itl", [gap for s in streams for gap in s.itl_s])
        | percentiles("tpot", [s.tpot_s for s in streams])
    )


def decode_rate(streams: Sequence[Stream]) -> dict[str, float]:
    """Returns output tokens per second from when the last stream begins until the first one ends.

    A server that serves the streams one after another never runs them all. The rate is then taken from the first token
    of any stream to the last one, and `in_turn` is 1.
    """
    begin = max(s.events[0] for s in streams)
    end = min(s.events[-1] for s in streams)
    # An event may carry more than one token.
    inside = [(s.num_tokens / len(s.events)) * sum(begin < t <= end for t in s.events) for s in streams]
    total = sum(s.num_tokens for s in streams)
    if end > begin and sum(inside) > total / 2:
        rate, in_turn = sum(inside) / (end - begin), 0.0
    else:
        span = max(s.events[-1] for s in streams) - min(s.events[0] for s in streams)
        rate, in_turn = (total - 1) / span, 1.0
    gap = statistics.median(gap for s in streams for gap in s.itl_s)
    return {"tokens_per_s": rate, "itl_p50_ms": gap * 1e3, "in_turn": in_turn}


def served(streams: Sequence[Stream], slo: Slo) -> dict[str, float]:
    """Returns throughput and goodput over the time from the first request to the last token."""
    span = max(s.events[-1] for s in streams) - min(s.sent for s in streams)
    good = sum(slo.met(s) for s in streams)
    return {
        "requests": len(streams),
        "requests_per_s": len(streams) / span,
        "tokens_per_s": sum(s.num_tokens for s in streams) / span,
        "goodput_per_s": good / span,
        "good_share": good / len(streams),
    }

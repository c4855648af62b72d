"""Measures how much the store disturbs other streams: `make bench NAME=spill`.

Several clients stream in four phases: alone, beside long prompts without a store, beside long prompts whose blocks are
written to the store, and beside the same prompts read back after a restart. The measure is the time between two tokens
of a stream. The phases with and without a store alternate, so that other load on the machine affects both. Writes
spill.md and spill.svg.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline  # noqa: E402

WIDTH, PANEL, MARGIN = 760, 130, 56
# The top of a panel's axis.
MAX_GAP_S = 0.5
Gaps = list[tuple[float, float]]


def prompt(number: int, length: int) -> list[int]:
    return [1 + (7919 * number + 31 * position) % 40_000 for position in range(length)]


def stream(server: Trunkline, number: int, stop: threading.Event, began: float, gaps: Gaps) -> None:
    """Streams long answers to short prompts until `stop`. Appends (time, gap) for each token except the first."""
    while not stop.is_set():
        body = {"prompt": prompt(10_000 + number, 40), "max_tokens": 400, "ignore_eos": True, "stream": True}
        last = None
        with httpx.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=600) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                if last is not None:
                    gaps.append((now - began, now - last))
                last = now
                if stop.is_set():
                    return


def phase(server: Trunkline, num_streams: int, work: Callable[[], None]) -> tuple[Gaps, float]:
    """Runs `work` beside the streams, and returns their gaps meanwhile and its duration."""
    stop, gaps, began = threading.Event(), [], time.perf_counter()
    threads = [
        threading.Thread(target=stream, args=(server, number, stop, began, gaps)) for number in range(num_streams)
    ]
    for thread in threads:
        thread.start()
    # The work begins once all streams decode.
    while len(gaps) < 20 * num_streams:
        time.sleep(0.01)
    start = time.perf_counter()
    gaps.clear()
    work()
    took = time.perf_counter() - start
    stop.set()
    for thread in threads:
        thread.join()
    return sorted((at - (start - began), gap) for at, gap in gaps if 0 <= at - (start - began) <= took), took


def send(server: Trunkline, numbers: range, length: int) -> None:
    for number in numbers:
        body = {"prompt": prompt(number, length), "max_tokens": 1}
        httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=600).raise_for_status()


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@dataclass
class Phase:
    """The gaps of the streams beside one kind of work, in one or more rounds."""

    name: str
    gaps: Gaps = field(default_factory=list)
    took: float = 0.0
    # One value per round.
    p99_ms: list[float] = field(default_factory=list)

    def add(self, server: Trunkline, num_streams: int, work: Callable[[], None]) -> None:
        """Measures one more round."""
        gaps, took = phase(server, num_streams, work)
        self.gaps += [(self.took + at, gap) for at, gap in gaps]
        self.took += took
        self.p99_ms.append(percentile([gap * 1e3 for _, gap in gaps], 0.99))
        print(f"{self.name}: {took:.1f} s, {len(gaps)} gaps, p99 {self.p99_ms[-1]:.1f} ms", file=sys.stderr)

    def row(self) -> str:
        times = [gap * 1e3 for _, gap in self.gaps]
        return (
            f"| {self.name} | {self.took:.1f} | {percentile(times, 0.5):.1f} | {percentile(times, 0.99):.1f} "
            f"| {', '.join(f'{p99:.0f}' for p99 in self.p99_ms)} | {max(times):.1f} |"
        )


def panel(name: str, gaps: Gaps, took: float, index: int) -> list[str]:
    top = index * (PANEL + 34) + 26
    x = lambda at: MARGIN + (WIDTH - MARGIN - 10) * at / max(took, 1e-9)  # noqa: E731  (two small maps)
    y = lambda gap: top + PANEL - PANEL * min(gap, MAX_GAP_S) / MAX_GAP_S  # noqa: E731
    out = [
        f'<text x="{MARGIN}" y="{top - 8}" font-size="13">{name} ({took:.0f} s)</text>',
        f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - MARGIN - 10}" height="{PANEL}" fill="none" stroke="#bbb"/>',
    ]
    for gap in (0, MAX_GAP_S / 2, MAX_GAP_S):
        out.append(
            f'<text x="{MARGIN - 6}" y="{y(gap) + 4}" font-size="11" text-anchor="end">{gap * 1e3:.0f} ms</text>'
        )
    dots = "".join(f"M{x(at):.1f} {y(gap):.1f}h0" for at, gap in gaps)
    out.append(f'<path d="{dots}" stroke="#1f6fb4" stroke-width="2" stroke-linecap="round" opacity="0.5"/>')
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=45, help="45 prompts of 2,000 tokens fill 1.1 GB")
    parser.add_argument("--round", type=int, default=9, help="prompts per turn")
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--save", action="store_true", help="write benchmark/results/spill.{md,svg}")
    args = parser.parse_args()
    alone, beside = Phase("no prompts"), Phase("prompts, no store")
    written, read = Phase("prompts, written to the store"), Phase("prompts, read from the store")
    rounds = [range(first, min(first + args.round, args.prompts)) for first in range(0, args.prompts, args.round)]
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        store = ("--kv-disk-path", folder, "--kv-disk-size", "4GiB")
        plain, first = Trunkline().wait_ready(), Trunkline(*store).wait_ready()
        alone.add(plain, args.streams, lambda: time.sleep(8))
        for numbers in rounds:
            beside.add(plain, args.streams, partial(send, plain, numbers, args.tokens))
            written.add(first, args.streams, partial(send, first, numbers, args.tokens))
        num_written = first.metrics()["trunkline_stored_blocks_total"]
        num_failed = first.metrics()["trunkline_store_failures_total"]
        plain.stop()
        first.stop()
        second = Trunkline(*store).wait_ready()
        read.add(second, args.streams, lambda: send(second, range(args.prompts), args.tokens))
        num_read = second.metrics()["trunkline_restored_blocks_total"]
        block_bytes = httpx.get(f"{second.base_url}/v1/kv").json()["block_bytes"]
        second.stop()
    phases = [alone, beside, written, read]
    lines = [
        f"Time between two tokens of {args.streams} streams beside {args.prompts} prompts of {args.tokens:,} tokens, "
        f"sent one after another; with and without a store in turns of {args.round} prompts (`make bench NAME=spill`)",
        "",
        "| beside | seconds | p50 ms | p99 ms | p99 of each turn | longest ms |",
        "|---|---|---|---|---|---|",
        *(item.row() for item in phases),
        "",
        f"{num_written * block_bytes / 1e9:.2f} GB were written ({num_failed:.0f} blocks failed), "
        f"{num_read * block_bytes / 1e9:.2f} GB read back.",
        "",
        "![time between two tokens](spill.svg)",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if args.save:
        results = ROOT / "benchmark/results"
        (results / "spill.md").write_text(text, encoding="utf-8")
        height = len(phases) * (PANEL + 34) + 12
        body = [line for index, item in enumerate(phases) for line in panel(item.name, item.gaps, item.took, index)]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">'
        (results / "spill.svg").write_text("\n".join([head, *body, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

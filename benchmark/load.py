"""The load generator of these programs: `trunkline bench`, and what it has written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# For the programs that use the harness. This module does not, because a GPU machine lacks its packages.
sys.path.insert(0, str(ROOT / "integration-tests"))
TRUNKLINE = ROOT / ".venv/bin/trunkline"

# Seconds in which a measurement ends that is interrupted.
END_DEADLINE_S = 30.0


class LoadError(RuntimeError):
    """A server could not be measured, or a request failed."""


class Load:
    """A measurement that runs, or has ended. `loads` is what it has written.

    prompts: the lines of a file of `--prompts`; None leaves that out.
    program: the `trunkline` that measures.
    """

    def __init__(
        self,
        base_url: str,
        *flags: str,
        api_key: str = "",
        prompts: Sequence[dict[str, Any]] | None = None,
        program: Path = TRUNKLINE,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trunkline-load-")
        self._file = Path(self._folder.name) / "result.json"
        command = [str(program), "bench", base_url, "--json", str(self._file), *flags]
        if prompts is not None:
            lines = Path(self._folder.name) / "prompts.jsonl"
            lines.write_text("".join(json.dumps(line) + "\n" for line in prompts))
            command += ["--prompts", str(lines)]
        environment = os.environ | {"TRUNKLINE_API_KEY": api_key}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        self.loads: list[dict[str, Any]] = []

    def wait(self, deadline_s: float | None = None) -> list[dict[str, Any]]:
        """Waits for the end and returns the loads. Raises LoadError if nothing was measured."""
        self.process.wait(deadline_s)
        if not self._file.exists():
            raise LoadError("`trunkline bench` has measured nothing")
        self.loads = json.loads(self._file.read_text())["loads"]
        self._folder.cleanup()
        return self.loads

    def interrupt(self) -> list[dict[str, Any]]:
        """Ends the measurement and returns what it has measured until then."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(END_DEADLINE_S)


def measure(base_url: str, *flags: str, **more: Any) -> dict[str, Any]:
    """Measures one load and returns it; `more` is that of `Load`. Raises LoadError if a request failed."""
    (load,) = Load(base_url, *flags, **more).wait()
    if load["figures"]["failed"]:
        raise LoadError(f"requests failed: {load['figures']['failures']}")
    return load


def line(max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Returns a line of prompts: a request for exactly `max_tokens` tokens, with these fields in its body."""
    return {"prompt": "", "output_tokens": max_tokens, "extra_body": fields}


def measure_all(
    base_url: str, prompts: Sequence[dict[str, Any]], *flags: str, num_clients: int | None = None, **more: Any
) -> dict[str, Any]:
    """Measures these requests once, all at the same time if `num_clients` is None."""
    size = ("--concurrency", str(num_clients or len(prompts)), "--requests", str(len(prompts)))
    return measure(base_url, *size, *flags, prompts=prompts, **more)


@contextlib.contextmanager
def background(base_url: str, *flags: str, api_key: str = "") -> Iterator[Load]:
    """Sends a load until the end of the `with` block."""
    load = Load(base_url, "--duration", "1h", *flags, api_key=api_key)
    try:
        yield load
    finally:
        load.interrupt()


@dataclass(frozen=True)
class Stream:
    """One streamed answer of a load with `--detailed`.

    Times are seconds of Unix time; `events` has the arrival of each event with output.
    """

    sent: float
    events: list[float]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    num_tokens: int = 0
    text: str = ""
    turn: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.events[0] - self.sent

    @property
    def e2e_s(self) -> float:
        """Seconds from sending the request to its last token."""
        return self.events[-1] - self.sent

    @property
    def itl_s(self) -> list[float]:
        """Seconds between arrivals of output tokens."""
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (E2E - TTFT) / (N - 1)."""
        return (self.e2e_s - self.ttft_s) / max(self.num_tokens - 1, 1)


def streams(load: dict[str, Any]) -> list[Stream]:
    """Returns the requests of a load with `--detailed` that did not fail, in the order of their sessions and turns."""
    found = []
    for row in sorted(load["requests"], key=lambda row: (row["session"], row["turn"])):
        if "failure" in row:
            continue
        sent = load["began_unix_s"] + row["sent_s"]
        found.append(
            Stream(
                sent, [sent + ms / 1e3 for ms in row["events_ms"]], row.get("prompt_tokens", 0),
                row.get("cached_tokens", 0), row.get("output_tokens", 0), row.get("text", ""), row["turn"],
            )
        )  # fmt: skip
    return found

"""The load generator of these programs: `trunkline bench`, and what it has written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import TRUNKLINE  # noqa: E402

# Seconds in which a measurement ends that is interrupted.
END_DEADLINE_S = 30.0


class Load:
    """A measurement that runs, or has ended. `loads` is what it has written.

    prompts: the lines of a file of `--prompts`; None leaves that out.
    """

    def __init__(
        self, base_url: str, *flags: str, api_key: str = "", prompts: list[dict[str, Any]] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trunkline-load-")
        self._file = Path(self._folder.name) / "result.json"
        command = [str(TRUNKLINE), "bench", base_url, "--json", str(self._file), *flags]
        if prompts is not None:
            lines = Path(self._folder.name) / "prompts.jsonl"
            lines.write_text("".join(json.dumps(line) + "\n" for line in prompts))
            command += ["--prompts", str(lines)]
        environment = os.environ | {"TRUNKLINE_API_KEY": api_key}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        self.loads: list[dict[str, Any]] = []

    def wait(self, deadline_s: float | None = None) -> list[dict[str, Any]]:
        """Waits for the end and returns the loads. Exits if nothing was measured."""
        self.process.wait(deadline_s)
        if not self._file.exists():
            sys.exit("error: `trunkline bench` has measured nothing")
        self.loads = json.loads(self._file.read_text())["loads"]
        self._folder.cleanup()
        return self.loads


def measure(
    base_url: str, *flags: str, api_key: str = "", prompts: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Measures one load and returns it. Exits if a request failed."""
    (load,) = Load(base_url, *flags, api_key=api_key, prompts=prompts).wait()
    if load["figures"]["failed"]:
        sys.exit(f"error: requests failed: {load['figures']['failures']}")
    return load


def line(max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Returns a line of prompts: a request for exactly `max_tokens` tokens, with these fields in its body."""
    return {"prompt": "", "output_tokens": max_tokens, "extra_body": fields}


def measure_all(base_url: str, prompts: list[dict[str, Any]], num_clients: int | None = None) -> dict[str, Any]:
    """Measures these requests once, all at the same time if `num_clients` is None."""
    flags = ("--concurrency", str(num_clients or len(prompts)), "--requests", str(len(prompts)))
    return measure(base_url, *flags, prompts=prompts)


@contextlib.contextmanager
def background(base_url: str, *flags: str, api_key: str = "") -> Iterator[Load]:
    """Sends a load until the end of the `with` block."""
    load = Load(base_url, "--duration", "1h", *flags, api_key=api_key)
    try:
        yield load
    finally:
        load.process.send_signal(signal.SIGINT)
        load.wait(END_DEADLINE_S)

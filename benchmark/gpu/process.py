"""What a phase's process does first: where its results go, and what it says before it is killed for its time."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path

from gpu.lines import Lines

# Before its limit a phase prints where it is.
LAST_SECONDS = 2.0


def phase_lines() -> Lines:
    """Where this phase writes; says where it hangs shortly before its limit, and ends in order at it.

    Outside a run: `results.jsonl` of the working folder.
    """
    ends = os.environ.get("GPU_CHECK_ENDS")
    if ends is not None:
        faulthandler.dump_traceback_later(max(0.5, float(ends) - time.time() - LAST_SECONDS))
        signal.signal(signal.SIGTERM, _end)
    path = Path(os.environ.get("GPU_CHECK_RESULTS", "results.jsonl"))
    return Lines(path, os.environ.get("GPU_CHECK_PHASE", "alone"))


def _end(number: int, _frame: object) -> None:
    """What is begun is ended, and its logs are printed."""
    raise SystemExit(128 + number)

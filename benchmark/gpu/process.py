"""Set-up of a phase's process: the file of its results, its behaviour at the time limit, and its end."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from pathlib import Path

from gpu.lines import Lines

# Seconds before its limit at which a phase prints its stacks.
LAST_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with(parent: int, after_s: float = 0.0) -> None:
    """Makes the kernel kill this process when its parent has ended, or after `after_s` if that is positive.

    Runs in the child between fork and exec, as `preexec_fn`. A process in a session of its own would otherwise outlive
    a parent that is killed, and keep the GPU's memory. parent: the id of the parent.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
    # The timer outlives the exec, and nothing in a phase handles its signal.
    signal.setitimer(signal.ITIMER_REAL, after_s)


def phase_lines() -> Lines:
    """Returns the writer for this phase's results, which go to the standard output outside a run.

    Within a run, also arranges that the process prints its stacks shortly before its limit, so that a hang can be
    found, and exits cleanly on SIGTERM.
    """
    ends = os.environ.get("GPU_CHECK_ENDS")
    if ends is not None:
        faulthandler.dump_traceback_later(max(0.5, float(ends) - time.time() - LAST_SECONDS))
        signal.signal(signal.SIGTERM, _end)
    path = Path(os.environ.get("GPU_CHECK_RESULTS", "/dev/stdout"))
    return Lines(path, os.environ.get("GPU_CHECK_PHASE", "alone"))


def _end(number: int, _frame: object) -> None:
    """Exits by an exception, so that servers are stopped and their logs are printed."""
    raise SystemExit(128 + number)

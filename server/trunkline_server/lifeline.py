"""The lifeline: a child ends as soon as the launcher is gone, however it went.

Standard input is a pipe whose other end only the launcher holds, so its end of file means that the launcher is dead,
also after SIGKILL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

# Of a child whose launcher is gone; nobody is left to read it.
EXIT_CODE_LIFELINE_CUT = 1
_READ_BYTES = 4096


def watch(file_descriptor: int, on_cut: Callable[[], None] | None = None) -> threading.Thread:
    """Starts a daemon thread that calls `on_cut` at the end of `file_descriptor`; by default the process ends at once.

    Bytes that arrive are ignored. A descriptor that cannot be read counts as cut.
    """
    thread = threading.Thread(
        target=_wait_for_end, args=(file_descriptor, on_cut or _exit_at_once), name="lifeline", daemon=True
    )
    thread.start()
    return thread


def _wait_for_end(file_descriptor: int, on_cut: Callable[[], None]) -> None:
    try:
        while os.read(file_descriptor, _READ_BYTES):
            pass
    except OSError:
        # No readable input: whoever started this process did not give it a lifeline that could hold.
        pass
    on_cut()


def _exit_at_once() -> None:
    # No clean-up: the router is ending too, and a step that still runs has no reader.
    os._exit(EXIT_CODE_LIFELINE_CUT)

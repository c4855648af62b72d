"""The lifeline: a child ends as soon as the launcher is gone, however it went.

Standard input is a pipe whose other end only the launcher holds, so its end of file means that the launcher is dead,
also after SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

# Of a child whose launcher is gone; nobody is left to read it.
EXIT_CODE_LIFELINE_CUT = 1
_READ_BYTES = 4096


def watch(file_descriptor: int, socket: Path) -> threading.Thread:
    """Starts a daemon thread that ends the process at the end of `file_descriptor`, and removes its `socket` first.

    Bytes that arrive are ignored. A descriptor that cannot be read counts as cut.
    """
    thread = threading.Thread(target=_wait_for_end, args=(file_descriptor, socket), name="lifeline", daemon=True)
    thread.start()
    return thread


def _wait_for_end(file_descriptor: int, socket: Path) -> None:
    try:
        while os.read(file_descriptor, _READ_BYTES):
            pass
    except OSError:
        # No readable input: whoever started this process did not give it a lifeline that could hold.
        pass
    # No other clean-up: the router is ending too, and a step that still runs has no reader. A socket that cannot be
    # removed is swept with its folder by the next launcher.
    with contextlib.suppress(OSError):
        socket.unlink(missing_ok=True)
    os._exit(EXIT_CODE_LIFELINE_CUT)

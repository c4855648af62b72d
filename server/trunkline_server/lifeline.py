"""The lifeline ends a child process as soon as the launcher is gone, for whatever reason.

Standard input is a pipe whose other end only the launcher holds. End of file therefore means that the launcher is dead,
even after SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

# Exit code of a child whose launcher is gone. No process is left to read it.
EXIT_CODE_LIFELINE_CUT = 1
STANDARD_INPUT = 0
_READ_BYTES = 4096


def watch(file_descriptor: int, socket: Path) -> threading.Thread:
    """Starts a daemon thread that removes `socket` and ends the process when `file_descriptor` reaches end of file.

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
        # No readable input, so the parent process did not provide a lifeline.
        pass
    # No other clean-up: the router is ending too, so nothing reads the result of a running step. If the socket cannot
    # be removed, the next launcher removes it with its folder.
    with contextlib.suppress(OSError):
        socket.unlink(missing_ok=True)
    os._exit(EXIT_CODE_LIFELINE_CUT)

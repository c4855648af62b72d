"""The command `spare`: a process that becomes a shard when it is told which one.

Python and gRPC take longer to import than a small model takes to load, so the launcher may start a shard's process
before it knows its model. The spare imports what every shard needs and waits for one line on its lifeline: a JSON array
with the arguments of `serve`. From then on it is that shard.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal

from trunkline_server.errors import InvalidArgument
from trunkline_server.lifeline import EXIT_CODE_LIFELINE_CUT

# What a shard on the cpu backend imports for any model. Few models need numpy, which would double a spare's cost.
_MODULES = (
    "trunkline_server.adapters.base",
    "trunkline_server.backends.cpu.build",
    "trunkline_server.backends.load_progress",
    "trunkline_server.backends.registry",
    "trunkline_server.cores",
    "trunkline_server.engine",
    "trunkline_server.loop",
    "trunkline_server.serve",
    "trunkline_server.service",
    "trunkline_server.settings",
    "trunkline_server.weights.checkpoint",
    "trunkline_server.weights.gguf_checkpoint",
    "trunkline_server.weights.pooling",
    "trunkline_server.weights.safetensors_checkpoint",
)
# A longer line does not come from the launcher.
_MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 4096


def wait_for_arguments(file_descriptor: int) -> list[str]:
    """Returns the arguments of `serve`. Ends the process if the lifeline is cut before. Raises InvalidArgument."""
    # As in a shard with a lifeline, the launcher forwards an interrupt as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(file_descriptor, _READ_BYTES)):
            os._exit(EXIT_CODE_LIFELINE_CUT)
        line += read
        if len(line) > _MAX_LINE_BYTES:
            raise InvalidArgument(f"the line for a spare shard has more than {_MAX_LINE_BYTES} bytes")
    try:
        arguments = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"the line for a spare shard is not JSON: {error}") from error
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise InvalidArgument("the line for a spare shard is not an array of strings")
    return arguments


def import_all() -> None:
    """Imports what a shard needs. Starts no thread: a shard takes its part of the cores first (`cores.py`)."""
    for name in _MODULES:
        importlib.import_module(name)
    # gRPC imports these when it makes its first handler and its first server, which would start threads.
    for name in ("grpc._utilities", "grpc._server"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Nothing so far is garbage.
    gc.freeze()

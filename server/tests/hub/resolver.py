"""Runs commands of `python -m trunkline_server` in forked processes, each with its own environment.

The Hub's library reads its environment variables when it is imported, and its imports take most of a second. The forked
processes inherit all imports except the library itself, which they import anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence

from trunkline_server import cli, hub
from trunkline_server.errors import UserError

LIBRARY = "huggingface_hub"
# The command that no user has.
ADAPTER = "adapter"


def _run(commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    results = []
    for arguments in commands:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = _find_adapter(arguments[1]) if arguments[0] == ADAPTER else cli.main(arguments)
        results.append((code, output.getvalue(), errors.getvalue()))
    return results


def _find_adapter(source: str) -> int:
    """Finds an adapter as a shard does, and prints its path."""
    try:
        print(hub.resolve_adapter(source))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _in_child(environment: dict[str, str], commands: Sequence[Sequence[str]]) -> None:
    """Runs the commands and answers with one line of JSON."""
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if name.split(".")[0] == LIBRARY]:
        del sys.modules[name]
    print(json.dumps(_run(commands)), flush=True)


def main() -> None:
    """Answers each line `[environment, commands]` of standard input; an empty answer means that a process failed."""
    from huggingface_hub import HfApi, errors, scan_cache_dir, snapshot_download  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _in_child(*json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            print("[]", flush=True)


if __name__ == "__main__":
    main()

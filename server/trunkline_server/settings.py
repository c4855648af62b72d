"""The settings of the shard: the file that the launcher writes for the router and the shards.

The crate `settings` (`settings/src/groups.rs`) declares each setting with its default, range and help. The launcher
checks the values and writes all of them, so this module knows none by name. `settings/tests/serve.json` is a file with
the defaults, a copy of which starts a shard by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from trunkline_server.errors import InvalidArgument

_HINT = "check that launcher and shard have the same version"


class Settings(SimpleNamespace):
    """The values of a JSON object as attributes. One that is missing raises InvalidArgument."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InvalidArgument(f"the settings have no `{name}`", hint=_HINT)


def read_settings(path: Path) -> Settings:
    """Reads a file, whose groups are attributes. Raises InvalidArgument."""
    try:
        settings = json.loads(path.read_bytes(), object_hook=lambda values: Settings(**values))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read the settings `{path}`: {error}") from error
    if not isinstance(settings, Settings):
        raise InvalidArgument(f"cannot read the settings `{path}`: no JSON object", hint=_HINT)
    return settings

"""The settings of the shard: the file that the launcher writes for the router and the shards.

The crate `settings` (`settings/src/groups.rs`) declares each setting with its default, range and help, and reads the
file here as in the router, so this module knows no setting by name. `settings/tests/serve.json` is a file with the
defaults, a copy of which starts a shard by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from trunkline_server import _kernels
from trunkline_server.errors import InvalidArgument


class Settings(SimpleNamespace):
    """The values of a JSON object as attributes."""


def read_settings(path: Path) -> Settings:
    """Reads a file, whose groups are attributes. Raises InvalidArgument, also for a value outside its range."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the settings `{path}`: {error}") from error
    return parse_settings(text, str(path))


def parse_settings(text: bytes, name: str) -> Settings:
    """Parses the text of such a file. name: of the text, for messages. Raises InvalidArgument."""
    try:
        checked = _kernels.read_settings(text)
    except ValueError as error:
        raise InvalidArgument(f"cannot read the settings `{name}`: {error}") from error
    settings: Settings = json.loads(checked, object_hook=lambda values: Settings(**values))
    return settings

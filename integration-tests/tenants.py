"""A server that requires API keys, and its tenants."""

from __future__ import annotations

from pathlib import Path

from harness import Trunkline

# Tenant → its table in the key file.
TABLES = {
    "flood": 'keys = "sk-flood-0123456789abcdef"\n',
    "chats": 'keys = "sk-chats-0123456789abcdef"\nmax_priority = "high"\nweight = 2\n',
    "bombs": 'keys = "sk-bombs-0123456789abcdef"\n',
    "calm": 'keys = "sk-calm-0123456789abcdef"\n',
}


def write_keys(path: Path, tables: dict[str, str] = TABLES) -> None:
    """Writes the key file, readable only by its owner because the router warns otherwise."""
    path.touch(mode=0o600)
    path.write_text("\n".join(f"[tenants.{name}]\n{table}" for name, table in tables.items()))


def headers(tenant: str) -> dict[str, str]:
    """Returns the header with the tenant's key."""
    return {"authorization": f"Bearer sk-{tenant}-0123456789abcdef"}


class Tenants:
    """A running server with the tenants of `TABLES`, and its key file."""

    def __init__(self, server: Trunkline, path: Path) -> None:
        self.server = server
        self.path = path

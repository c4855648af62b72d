"""Checks that the modules of the Python server do not import each other in a circle.

Imports inside functions, and those that only a type checker reads, count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from import_graph import circles

SERVER = Path(__file__).resolve().parent.parent / "server"
PACKAGE = "trunkline_server"


def modules() -> dict[str, ast.Module]:
    """Returns the modules that people write, by their full names."""
    found = {}
    for file in sorted((SERVER / PACKAGE).rglob("*.py")):
        parts = file.relative_to(SERVER).with_suffix("").parts
        if "_proto" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(file.read_text())
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module imports, which may be those of modules or of what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def check() -> list[str]:
    """Returns what is wrong with the imports of the server."""
    found = modules()
    edges = {name: {target for target in imported(tree) if target in found} - {name} for name, tree in found.items()}
    # A package is imported with each of its modules, and imports none of them.
    return [f"server: modules import each other in a circle: {', '.join(group)}" for group in circles(edges)]

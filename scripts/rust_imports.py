"""Checks which modules of a Rust crate import each other: layers that point down, and no cycles.

A cycle is reported between the children of one module. A parent and its own children may name each other, because a
module's file re-exports them. `python scripts/rust_imports.py` prints the graph of each crate.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from import_graph import circles

ROOT = Path(__file__).resolve().parent.parent
# Each row may import the rows below it. Modules of one row do not import each other.
BASE_LAYERS = (
    ("tenants", "metrics"),
    ("limits",),
    ("error", "watermark"),
    ("request_id",),
    ("log",),
    ("repeats",),
    ("clock", "machine", "random", "shutdown", "trace"),
)
KV_LAYERS = (
    ("cache",),
    ("device",),
    ("store",),
    ("events", "tenants"),
    ("evict",),
    ("index",),
    ("pin_table", "salt"),
)
RESIDENCY_LAYERS = (
    ("residency",),
    ("eviction", "model"),
    ("event",),
)
# The crate's first comment says what is in each.
SCHEDULER_LAYERS = (
    ("scheduler",),
    ("planner", "invariants"),
    ("admission", "balance", "results", "turns"),
    ("choice", "loss", "prefill"),
    ("drafts", "drain", "output", "refusal", "roles", "transfers", "yielding"),
    ("lifecycle",),
    ("neighbours", "windows", "pins", "lower_tier", "scores", "starts", "late_masks"),
    ("lane",),
    ("running", "cells"),
    ("loss_log", "sequences", "shard"),
    ("adapters", "in_flight", "poison", "queue", "restores", "sequence_map"),
    ("budget",),
    ("sequence",),
    ("constraint", "estimate", "message_size", "shared_store", "stats"),
    ("event", "fairness", "outbox", "step_cost"),
    ("config", "consumption", "plan", "recents"),
)
KERNELS_LAYERS = (
    ("executor",),
    ("adapter", "weight_cache"),
    ("kv_spill", "weight_stream"),
    ("program",),
    ("attention", "page_sums", "sampling"),
    ("threads",),
    ("cpus", "direct_file"),
)
KERNELS_CORE_LAYERS = (
    ("kv_pool",),
    ("ops", "pack"),
    ("vector",),
    ("aligned", "isa", "shared_mut"),
)
# Crates whose top modules have an order.
LAYERS = {
    "router/base/src": BASE_LAYERS,
    "router/kv/src": KV_LAYERS,
    "router/residency/src": RESIDENCY_LAYERS,
    "router/scheduler/src": SCHEDULER_LAYERS,
    "kernels/src": KERNELS_LAYERS,
    "kernels/core/src": KERNELS_CORE_LAYERS,
}

Module = tuple[str, ...]
COMMENT = re.compile(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"")
TOKEN = re.compile(r"\s*(::|[{},*;]|\w+)")
PATH = re.compile(r"\b(?:crate|super|self)(?=::)")
REEXPORT = re.compile(r"^\s*pub(?:\([\w :]+\))? use ", re.MULTILINE)


def read_tree(text: str, at: int) -> tuple[list[list[str]], int]:
    """Reads a path that may end with braces: `a::{b, c::d}` gives [a, b] and [a, c, d]. Returns where it ends, too."""
    prefix: list[str] = []
    while token := TOKEN.match(text, at):
        word = token[1]
        if word == "{":
            paths, at = [], token.end()
            while (after := TOKEN.match(text, at)) and after[1] != "}":
                if after[1] == ",":
                    at = after.end()
                    continue
                branch, end = read_tree(text, at)
                if end == at:
                    break
                paths += [prefix + path for path in branch]
                at = end
            return paths, after.end() if after else at
        if word in "},;":
            break
        prefix.append(word)
        at = token.end()
        step = TOKEN.match(text, at)
        if step is None or step[1] != "::":
            break
        at = step.end()
    return ([prefix] if prefix else []), at


class Crate:
    """The modules of a crate, and the modules that each imports."""

    def __init__(self, source: Path) -> None:
        self.texts = {
            module_of(file.relative_to(source)): COMMENT.sub("", file.read_text())
            for file in sorted(source.rglob("*.rs"))
            if file.parent.name != "generated"
        }
        self.modules = {module[:end] for module in self.texts for end in range(len(module) + 1)}
        self.reexports: dict[tuple[Module, str], list[str]] = {}
        for module, text in self.texts.items():
            for match in REEXPORT.finditer(text):
                for path in read_tree(text, match.end())[0]:
                    self.reexports[module, path[-1]] = self.absolute(module, path)
        self.imports = {module: set(self.targets(module)) - {module} for module in self.texts}

    def absolute(self, module: Module, path: list[str]) -> list[str]:
        """Returns a path's segments from the root of the crate on."""
        if path[0] == "crate":
            return path[1:]
        base = list(module)
        while path and path[0] in ("super", "self"):
            base = base[:-1] if path[0] == "super" else base
            path = path[1:]
        return base + path

    def resolve(self, path: list[str], depth: int = 0) -> Module:
        """Returns the module that defines the item at a path, looking through re-exports."""
        module: Module = ()
        for index, name in enumerate(path):
            if (*module, name) in self.modules:
                module = (*module, name)
            elif (module, name) in self.reexports and depth < 8:
                return self.resolve(self.reexports[module, name] + path[index + 1 :], depth + 1)
            else:
                break
        return module

    def targets(self, module: Module) -> Iterator[Module]:
        text = self.texts[module]
        for match in PATH.finditer(text):
            # `super` in the middle of a path was read with its beginning.
            if text[: match.start()].endswith("::"):
                continue
            for path in read_tree(text, match.start())[0]:
                yield self.resolve(self.absolute(module, path))

    def edges(self, parent: Module) -> dict[str, set[str]]:
        """Returns which children of a module import which of its other children."""
        depth = len(parent)
        found: dict[str, set[str]] = {}
        for module, targets in self.imports.items():
            if module[:depth] != parent or len(module) == depth:
                continue
            own = found.setdefault(module[depth], set())
            own |= {target[depth] for target in targets if target[:depth] == parent and len(target) > depth}
            own.discard(module[depth])
        return found

    def cycles(self) -> list[list[str]]:
        """Returns the groups of sibling modules that import each other in a circle."""
        found = []
        for parent in sorted(self.modules):
            groups = circles(self.edges(parent))
            found += [["::".join((*parent, child)) for child in group] for group in groups]
        return found


def module_of(file: Path) -> Module:
    parts = file.with_suffix("").parts
    if parts[-1] == "mod" or parts == ("lib",):
        parts = parts[:-1]
    return tuple(parts)


def upward(crate: Crate, layers: tuple[tuple[str, ...], ...]) -> list[str]:
    """Returns the imports that do not point down, and the modules that no layer has."""
    row = {module: number for number, layer in enumerate(layers) for module in layer}
    edges = crate.edges(())
    lost = [f"`{module}` is in no layer" for module in sorted(edges) if module not in row]
    return lost + [
        f"`{module}` may not import `{target}`, which is not below it"
        for module in sorted(edges)
        for target in sorted(edges[module])
        if module in row and target in row and row[target] <= row[module]
    ]


def crates() -> Iterator[tuple[str, Crate]]:
    """Yields the source folder of each member of the workspace that has one, and its modules."""
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    for name in sorted(f"{member}/src" for member in members):
        if (ROOT / name).is_dir():
            yield name, Crate(ROOT / name)


def check() -> list[str]:
    """Returns what is wrong with the imports of all crates."""
    found = []
    for name, crate in crates():
        if name in LAYERS:
            found += [f"{name}: {problem}" for problem in upward(crate, LAYERS[name])]
        found += [f"{name}: modules import each other in a circle: {', '.join(group)}" for group in crate.cycles()]
    return found


def counts() -> str:
    """Returns a line with the number of files that were checked."""
    files = [len(crate.texts) for _, crate in crates()]
    return f"imports of {sum(files)} files in {len(files)} crates"


def main() -> None:
    for name, crate in crates():
        edges = crate.edges(())
        print(f"{name}: {len(crate.texts)} files, {len(crate.cycles())} cycles")
        for layer in LAYERS.get(name) or (tuple(sorted(edges)),):
            for module in layer:
                print(f"  {module:14} → {' '.join(sorted(edges.get(module, ())))}")
        for group in crate.cycles():
            print(f"  cycle: {' '.join(group)}")


if __name__ == "__main__":
    main()

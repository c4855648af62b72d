"""Checks that docs/limits.md names constants that exist, with the values that they have in the code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path("docs/limits.md")
NAME = re.compile(r"`([A-Z][A-Z0-9_]{3,})`")
RUST = re.compile(r"\bconst ([A-Z][A-Z0-9_]+): [^=;]+= ([^;]+);")
PYTHON = re.compile(r"^([A-Z][A-Z0-9_]+)(?:: [\w.\[\]]+)? = ([^#\n]+)", re.MULTILINE)
DURATION = re.compile(r"Duration::from_(secs|millis|micros)\(([^()]+)\)")
OPERATORS = {ast.Mult: operator.mul, ast.LShift: operator.lshift, ast.Add: operator.add, ast.Sub: operator.sub}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def seconds(match: re.Match[str]) -> str:
    return f"({match[2]}) * {({'secs': 1, 'millis': 1e-3, 'micros': 1e-6})[match[1]]}"


def value(expression: str) -> float | None:
    """Returns the value of an expression of numbers; durations are in seconds. `None` if it contains anything else."""
    text = re.sub(r"\s+as \w+|(?<=\d)_?[iuf](?:8|16|32|64|size)\b", "", DURATION.sub(seconds, expression.strip()))
    try:
        return evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = evaluate(node.left), evaluate(node.right)
        if isinstance(node.op, ast.LShift):
            return int(left) << int(right)
        return float(OPERATORS[type(node.op)](left, right))
    raise ValueError("not an expression of numbers")


def spellings(number: float) -> set[str]:
    """Returns the ways in which the page may write a value: a count, a size, or a duration in seconds."""
    found = {
        f"{number:,.15g}",
        f"{number:.15g}",
        f"{number:.15g} s",
        f"{number * 1000:.15g} ms",
        f"{number / 60:.15g} m",
    }
    return found | {f"{number / size:.15g} {unit}" for unit, size in UNITS.items() if number % size == 0}


def constants(root: Path, names: list[Path]) -> dict[str, list[float | None]]:
    """Returns the values of every constant of the Rust and Python sources; several if crates use the same name."""
    found: dict[str, list[float | None]] = {}
    for path in names:
        pattern = {".rs": RUST, ".py": PYTHON}.get(path.suffix)
        if pattern is None or "tests" in path.relative_to(root).parts:
            continue
        for name, expression in pattern.findall(path.read_text()):
            found.setdefault(name, []).append(value(expression))
    return found


def check(root: Path, names: list[Path]) -> Iterator[str]:
    """Yields a problem for each name in a table's third column that no constant has, or whose row has another value."""
    known = constants(root, names)
    for line in (root / PAGE).read_text().splitlines():
        if not line.startswith("|"):
            continue
        for name in NAME.findall(line.split("|")[3]):
            if name not in known:
                yield f"{PAGE}: there is no constant `{name}`"
                continue
            unit = 1000 if name.endswith("_MS") else 1
            values = [number / unit for number in known[name] if number is not None]
            written = [spelling for number in values for spelling in spellings(number)]
            if values and not any(re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d.,]*\d)", line) for text in written):
                actual = " or ".join(f"{number:.15g}" for number in values)
                yield f"{PAGE}: `{name}` is {actual}, but its row says: {line}"

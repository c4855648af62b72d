"""Kernels whose launches overlap wait for the launch before them."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

import pytest
import torch
from tests.cuda.compiled import Compiled
from trunkline_server.backends.cuda import kernels
from trunkline_server.backends.cuda.kernels import overlap
from trunkline_server.backends.cuda.kernels.card import Card

TREES = [
    ast.parse(Path(found.module_finder.path, f"{found.name}.py").read_text())  # type: ignore[union-attr]
    for found in pkgutil.iter_modules(kernels.__path__)
]
FUNCTIONS = {node.name: node for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def waits_first(kernel: ast.FunctionDef) -> bool:
    body = kernel.body[1:] if ast.get_docstring(kernel) is not None else kernel.body
    return isinstance(body[0], ast.Expr) and calls(body[0].value, "await_previous")


def launched(function: ast.FunctionDef) -> set[str]:
    """Returns the names in `name[grid](...)`."""
    launches = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {at.value.id for at in launches if isinstance(at, ast.Subscript) and isinstance(at.value, ast.Name)}


def test_what_overlaps_waits_before_anything_else() -> None:
    overlapping = [one for one in FUNCTIONS.values() if any(calls(node, "overlap") for node in ast.walk(one))]
    names = set().union(*(launched(one) for one in overlapping))
    assert len(names) >= 14
    assert {name for name in names if not waits_first(FUNCTIONS[name])} == set()


def test_the_compiler_moves_no_access_before_the_wait(hopper: dict[str, dict[str, Compiled]]) -> None:
    found = [kernel for module in hopper.values() for kernel in module.values()]
    waiting = [kernel for kernel in found if waits_first(FUNCTIONS[kernel.kernel])]
    assert len(waiting) >= 5
    assert [kernel.name for kernel in waiting if not kernel.waits_first] == []
    assert not all(kernel.waits_first for kernel in found)


def test_launches_overlap_from_hopper_on_if_that_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "OVERLAPS_LAUNCHES", True)
    monkeypatch.setattr(overlap.INTERPRETED, "value", False)
    for capability, expected in (((9, 0), {"launch_pdl": True}), ((12, 0), {"launch_pdl": True}), ((8, 9), {})):
        monkeypatch.setattr(overlap, "card_of", lambda _device, capability=capability: Card(capability, 100))
        assert overlap.overlap(torch.device("cpu")) == expected
    monkeypatch.setattr(overlap, "OVERLAPS_LAUNCHES", False)
    assert overlap.overlap(torch.device("cpu")) == {}

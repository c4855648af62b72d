"""Circles in a graph of imports."""

from __future__ import annotations


def circles(edges: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Returns the groups of nodes that reach each other, each in the order of their names. edges: targets by source."""
    reach = {node: reachable(edges, node) for node in edges}
    groups = {
        tuple(sorted(other for other in edges if other in reach[node] and node in reach[other])) for node in edges
    }
    return sorted(group for group in groups if group)


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.add(child)
            waiting += edges.get(child, ())
    return found

"""Reads the comments of values.yaml, which describe the values."""

from __future__ import annotations

import re

LINE = re.compile(r"^(?P<indent> *)(?:# (?P<comment>\S.*)|(?P<key>[A-Za-z][\w-]*):.*)$")


def descriptions(text: str) -> dict[tuple[str, ...], str]:
    """Returns the comment above each key, by the key's path. A key without a comment has an empty one."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            comment = []
        elif match["comment"]:
            comment.append(match["comment"])
        else:
            indent = len(match["indent"])
            path = [(i, key) for i, key in path if i < indent] + [(indent, match["key"])]
            found[tuple(key for _, key in path)] = " ".join(comment)
            comment = []
    return found

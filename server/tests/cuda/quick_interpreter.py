"""Speeds up Triton's interpreter, which otherwise patches its language again for every launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def patch_once() -> None:
    """Makes the interpreter patch each module's language only once, at its first launch."""
    from triton.runtime import interpreter

    patch, languages = interpreter._patch_lang, [interpreter.tl, interpreter.tl.core]
    patched: set[tuple[bool, ...]] = set()

    def patch_first(function: Any) -> Any:
        named = {id(value) for value in function.__globals__.values()}
        key = tuple(id(language) in named for language in languages)
        if key not in patched:
            patched.add(key)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_first

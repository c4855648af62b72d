"""Triton's interpreter, quicker: by itself it patches Triton's language for each launch and each call inside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def patch_once() -> None:
    """From now on each module's language is patched at its first launch, and stays so."""
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

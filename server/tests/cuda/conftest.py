"""Where no GPU is, Triton's kernels run in its interpreter, on tensors of the CPU: see the conftest of all tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def patched_once() -> None:
    """The interpreter patches Triton's language for each launch and each call inside it, which takes most of its time.

    Nothing here needs the language unpatched.
    """
    from triton.runtime import interpreter

    patch, languages = interpreter._patch_lang, [interpreter.tl, interpreter.tl.core]
    patched: set[tuple[bool, ...]] = set()

    def patch_once(function: Any) -> Any:
        named = {id(value) for value in function.__globals__.values()}
        key = tuple(id(language) in named for language in languages)
        if key not in patched:
            patched.add(key)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels of this run work: "cuda", or "cpu" in the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def arithmetic_of_the_device() -> Iterator[None]:
    """Infinities and what is not a number are values to kernels: the device does not warn of them, nor may NumPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time to torch's thread pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""Speeds up Triton's interpreter, which otherwise does the same work again for every launch, program and operation."""

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


def make_once() -> None:
    """Caches equal block types, tensor shapes and NumPy types from now on."""
    import triton.language.core as core
    from triton.runtime import interpreter

    make_block_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    find_dtype = interpreter._get_np_dtype
    blocks: dict[Any, dict[str, Any]] = {}
    dtypes: dict[str, Any] = {}

    def parts_of(type: Any) -> tuple[Any, ...]:
        probe = object.__new__(core.tensor)
        make_tensor(probe, None, type)
        return probe.shape, probe.numel, probe.dtype

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = core._unwrap_if_constexpr(shape)
        key = element_ty.name, *(core._unwrap_if_constexpr(size) for size in sizes)
        if key not in blocks:
            make_block_type(self, element_ty, shape)
            self.parts = parts_of(self)
            blocks[key] = vars(self)
        else:
            vars(self).update(blocks[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        known = vars(type)
        if "parts" not in known:
            type.parts = parts_of(type)
        self.handle, self.type = handle, type
        self.shape, self.numel, self.dtype = known["parts"]

    def np_dtype(type: Any) -> Any:
        name = type.element_ty.name if isinstance(type, core.block_type) else type.name
        if name not in dtypes:
            dtypes[name] = find_dtype(type)
        return dtypes[name]

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
    interpreter._get_np_dtype = np_dtype

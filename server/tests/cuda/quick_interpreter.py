"""Speeds up Triton's interpreter without changing a result.

It patches its language for every launch and call, makes and compares equal types again and again, converts floats bit
by bit, and computes overflows of integers, which it reports only when debugging. Here the first is done once, types
are kept, a conversion of few bits is a table that the interpreter's own function fills, and overflows are not computed.
Functions return early where they would change nothing; in all other cases the interpreter's own do the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl


def patch_once() -> None:
    """Replaces functions of the interpreter and of its language, unless kernels are compiled, as on a GPU."""
    from triton.runtime import interpreter

    if not triton.knobs.runtime.interpret:
        return
    assert not interpreter.interpreter_builder.options.debug, "overflows are reported"
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patch_first(interpreter._patch_lang)
    interpreter._get_np_dtype = _by_scalar(interpreter._get_np_dtype)
    interpreter._convert_float = _by_table(interpreter._convert_float)
    _check_quickly(interpreter.TensorHandle)
    _keep_types(tl.core)
    _return_early(tl.core, interpreter.TritonSemantic)


def _patch_attr(target: Any, name: str, member: Callable[..., Any], _builder: Any, scope: Any) -> None:
    from triton.runtime.interpreter import interpreter_semantic

    def patched(*args: Any, **named: Any) -> Any:
        named["_semantic"] = interpreter_semantic
        return member(*args, **named)

    scope.set_attr(target, name, patched)


def _patch_first(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the interpreter patch the languages that a module names only at its first launch."""
    modules: set[int] = set()
    patched: set[tuple[bool, ...]] = set()
    scope = SimpleNamespace(restore=lambda: None)

    def patch_first(function: Any) -> Any:
        if id(function.__globals__) not in modules:
            modules.add(id(function.__globals__))
            named = {id(value) for value in function.__globals__.values()}
            key = tuple(id(language) in named for language in (tl, tl.core))
            if key not in patched:
                patched.add(key)
                patch(function)
        return scope

    return patch_first


def _by_scalar(look_up: Callable[[Any], np.dtype[Any]]) -> Callable[[Any], np.dtype[Any]]:
    found: dict[str, np.dtype[Any]] = {}

    def get(dtype: Any) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in found:
            found[name] = look_up(dtype)
        return found[name]

    return get


def _by_table(convert: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    @cache
    def table(source: Any, target: Any, rounding: Any) -> np.ndarray:
        bits = source.primitive_bitwidth
        return convert(np.arange(1 << bits, dtype=f"u{bits // 8}"), source, target, rounding)

    def converted(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        bits = source.primitive_bitwidth
        if bits > 16:
            return convert(values, source, target, rounding)
        return table(source, target, rounding)[np.ascontiguousarray(values).view(f"u{bits // 8}")]

    return converted


def _keep_types(core: Any) -> None:
    """Keeps one type for each element type and shape of a block, with what all tensors of the type have in common."""
    kept: dict[Any, Any] = {}
    block_type, make = core.block_type, core.block_type.__init__
    scalar_shape, scalar_size = core.tuple([]), core.constexpr(1)

    def new(cls: Any, element_ty: Any, shape: Any) -> Any:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        found = kept.get((element_ty.name, sizes))
        if found is None:
            found = kept[element_ty.name, sizes] = object.__new__(cls)
            make(found, element_ty, shape)
            found.tensor_shape = core.tuple([core.constexpr(size) for size in sizes])
            found.tensor_size, found.sizes = core.constexpr(found.numel), sizes
        return found

    def init_tensor(tensor: Any, handle: Any, dtype: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, dtype, dtype.scalar
        is_block = isinstance(dtype, block_type)
        tensor.shape = dtype.tensor_shape if is_block else scalar_shape
        tensor.numel = dtype.tensor_size if is_block else scalar_size

    block_type.__new__, block_type.__init__ = new, lambda *_: None
    core.tensor.__init__ = init_tensor


def _check_quickly(handle: Any) -> None:
    """Keeps the largest size of an element of each type. A handle may not have larger ones."""
    limits: dict[str, int] = {}

    def init(self: Any, data: np.ndarray, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        limit = limits.get(dtype.name)
        if limit is None:
            limit = limits[dtype.name] = 16 if dtype.is_ptr() else max(dtype.primitive_bitwidth, 8) // 8
        if data.itemsize > limit:
            raise ValueError(f"elements of {data.itemsize} bytes are no {dtype}")

    handle.__init__ = init


def _return_early(core: Any, semantic: Any) -> None:
    constexpr, tensor = core.constexpr, core.tensor
    unwrap, equal = core._unwrap_if_constexpr, core.dtype.__eq__
    broadcast, cast, common = semantic.broadcast_impl_value, semantic.cast, semantic.computation_type_impl
    known: dict[Any, Any] = {}

    def unwrapped(value: Any) -> Any:
        return value.value if type(value) is constexpr else value if type(value) is tensor else unwrap(value)

    def is_equal(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    def broadcasted(self: Any, x: Any, y: Any) -> Any:
        sizes, others = (getattr(one.type, "sizes", None) for one in (x, y))
        return (x, y) if sizes == others else broadcast(self, x, y)

    def casted(self: Any, value: Any, dtype: Any, rounding: Any = None) -> Any:
        return value if value.dtype is dtype else cast(self, value, dtype, rounding)

    def common_type(self: Any, a: Any, a_is_scalar: bool, b: Any, b_is_scalar: bool, div_or_mod: bool) -> Any:
        key = (a.name, a_is_scalar, b.name, b_is_scalar, div_or_mod)
        if key not in known:
            known[key] = common(self, a, a_is_scalar, b, b_is_scalar, div_or_mod)
        return known[key]

    core._unwrap_if_constexpr, core.dtype.__eq__ = unwrapped, is_equal
    semantic.broadcast_impl_value, semantic.cast, semantic.computation_type_impl = broadcasted, casted, common_type

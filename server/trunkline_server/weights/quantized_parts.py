"""Lists the tensors of a quantised linear module and computes the shape of the weight that they encode.

    Gptq            qweight i32 [K * bits / 32, N], qzeros i32 [G, N * bits / 32], scales [G, N], optional g_idx i32 [K]
    Awq             qweight i32 [K, N / 8], qzeros i32 [G, N / 8], scales [G, N]
    PackedIntegers  weight_packed i32 [N, K * bits / 32], weight_scale [N, G], optional weight_g_idx i32 [K];
                    if asymmetric, weight_zero_point i32 [N * bits / 32, G], N rounded up to whole words
    EightBits       weight e4m3 or i8 [N, K], a scale [N, 1], [N], [1] or []; if static, input_scale [1] or [];
                    with blocks of [n, k] a scale [N / n, K / k], both rounded up
    FourBitFloats   weight u8 [N * K / 2, 1], weight.absmax, weight.quant_map, optional weight.nested_absmax and
                    weight.nested_quant_map, weight.quant_state.bitsandbytes__nf4 (or fp4)
    Mxfp4           blocks u8 [N, G, 16], scales u8 [N, G], of each expert in stacks NAME_blocks and NAME_scales

K: inputs; N: outputs; G: groups of inputs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from trunkline_server.errors import DamagedFile, quoted
from trunkline_server.weights.quantization import (
    Awq,
    EightBits,
    FourBitFloats,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F16", "BF16", "F32")
# An integer of each format's size, and the exponent that numbers that are not finite have.
_EXPONENTS = {"F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000)}
BITSANDBYTES_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_MAX_STATE_BYTES = 1 << 16
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a quantised module. dtype: its name in safetensors.

    data: its bytes, as in `Tensor`, but those of `Mxfp4` are an array of the shape, whose rows may lie apart.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview | NDArray[np.uint8]


def part_suffixes(scheme: Quantization, module: str, dtypes: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the suffixes of the tensors of a quantised module, its weight first; empty if it is not quantised.

    module: such as `model.layers.0.mlp.up_proj`; dtypes: of all tensors of the model, by name.
    """

    def there(*suffixes: str) -> tuple[str, ...]:
        return tuple(suffix for suffix in suffixes if f"{module}.{suffix}" in dtypes)

    weight = dtypes.get(f"{module}.weight")
    if isinstance(scheme, Mxfp4):
        return ()
    if isinstance(scheme, Gptq | Awq):
        return there("qweight", "qzeros", "scales", "g_idx") if there("qweight") else ()
    if isinstance(scheme, PackedIntegers):
        found = there("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")
        return found if there("weight_packed") else ()
    if isinstance(scheme, EightBits):
        is_quantized = weight == ("F8_E4M3" if scheme.is_float else "I8")
        return there("weight", scheme.scale_name, "input_scale") if is_quantized else ()
    names = ("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
    return there(*names, *BITSANDBYTES_STATES) if weight == "U8" else ()


def quantized_shape(path: Path, scheme: Quantization, module: str, parts: Mapping[str, Part]) -> tuple[int, ...]:
    """Returns the shape [N, K] of the weight that a module's parts encode.

    parts: by suffix. Raises DamagedFile if they contradict each other.
    """
    check = _Check(path, module, parts)
    if isinstance(scheme, Gptq):
        return _gptq_shape(check, scheme)
    if isinstance(scheme, Awq):
        return _awq_shape(check, scheme)
    if isinstance(scheme, PackedIntegers):
        return _packed_shape(check, scheme)
    if isinstance(scheme, EightBits):
        return _eight_bits_shape(check, scheme)
    if isinstance(scheme, FourBitFloats):
        return _four_bits_shape(check)
    if isinstance(scheme, Mxfp4):
        num_outputs, groups, _ = check.shape("blocks", ("U8",), dimensions=3)
        return num_outputs, groups * MXFP4_GROUP
    assert_never(scheme)


def check_finite(path: Path, parts: Mapping[str, Part]) -> None:
    """Raises DamagedFile if a scale of a module, or another of its floats, is not finite."""
    import numpy as np

    for suffix, part in parts.items():
        if part.dtype in _EXPONENTS:
            integers, exponent = _EXPONENTS[part.dtype]
            bits = np.frombuffer(part.data, dtype=integers)
            is_finite = not ((bits & exponent) == exponent).any()
        else:
            # E8M0, the format of MXFP4's scales, has one code that is no number.
            is_finite = suffix != "scales" or part.dtype != "U8" or not (np.asarray(part.data) == 255).any()
        if not is_finite:
            raise DamagedFile(path, f"tensor {quoted(part.name)} has a number that is not finite")


def quantization_state(parts: Mapping[str, Part]) -> Mapping[str, object]:
    """Parses the JSON in which bitsandbytes describes a weight; empty if there is none or it is not an object."""
    for suffix in BITSANDBYTES_STATES:
        if suffix in parts and parts[suffix].data.nbytes <= _MAX_STATE_BYTES:
            try:
                state = json.loads(bytes(parts[suffix].data))
            except (ValueError, RecursionError):
                continue
            if isinstance(state, dict):
                return state
    return {}


class _Check:
    """Checks a module's parts and raises errors that name the faulty one."""

    def __init__(self, path: Path, module: str, parts: Mapping[str, Part]) -> None:
        self._path, self._module, self._parts = path, module, parts

    def has(self, suffix: str) -> bool:
        return suffix in self._parts

    def matrix(self, suffix: str, dtypes: Collection[str]) -> tuple[int, int]:
        rows, columns = self.shape(suffix, dtypes, dimensions=2)
        return rows, columns

    def shape(self, suffix: str, dtypes: Collection[str], dimensions: int | None = None) -> tuple[int, ...]:
        part = self._parts.get(suffix)
        if part is None:
            raise DamagedFile(self._path, f"tensor {quoted(f'{self._module}.{suffix}')} is missing")
        if part.dtype not in dtypes or (dimensions is not None and len(part.shape) != dimensions) or 0 in part.shape:
            raise DamagedFile(
                self._path,
                f"tensor {quoted(part.name)} is {part.dtype} {list(part.shape)}, expected {'/'.join(dtypes)}",
            )
        return part.shape

    def expect(self, suffix: str, dtypes: Collection[str], *shapes: tuple[int, ...]) -> None:
        found = self.shape(suffix, dtypes)
        if found not in shapes:
            raise DamagedFile(
                self._path,
                f"tensor {quoted(f'{self._module}.{suffix}')} has shape {list(found)}, expected "
                f"{' or '.join(str(list(shape)) for shape in shapes)} to match the module's other tensors",
            )

    def state(self) -> Mapping[str, object]:
        """Returns `quantization_state`. Raises DamagedFile if it is missing or not an object."""
        suffix = next((suffix for suffix in BITSANDBYTES_STATES if suffix in self._parts), BITSANDBYTES_STATES[0])
        self.shape(suffix, ("U8",), dimensions=1)
        state = quantization_state(self._parts)
        if not state:
            raise DamagedFile(self._path, f"tensor {quoted(f'{self._module}.{suffix}')} is not a JSON object")
        return state

    def damaged(self, what: str) -> DamagedFile:
        return DamagedFile(self._path, f"module {quoted(self._module)} {what}")


def num_groups(num_inputs: int, group_size: int | None) -> int:
    """Returns the number of groups in a row; one if `group_size` is None."""
    return 1 if group_size is None else -(-num_inputs // group_size)


def _gptq_shape(check: _Check, scheme: Gptq) -> tuple[int, int]:
    in_word = 32 // scheme.bits
    words, num_outputs = check.matrix("qweight", ("I32",))
    num_inputs = words * in_word
    if num_outputs % in_word != 0:
        raise check.damaged(f"has {num_outputs} outputs, expected a multiple of {in_word}")
    groups = num_groups(num_inputs, scheme.group_size)
    check.expect("qzeros", ("I32",), (groups, num_outputs // in_word))
    check.expect("scales", FLOATS, (groups, num_outputs))
    if check.has("g_idx"):
        check.expect("g_idx", ("I32",), (num_inputs,))
    return num_outputs, num_inputs


def _awq_shape(check: _Check, scheme: Awq) -> tuple[int, int]:
    num_inputs, words = check.matrix("qweight", ("I32",))
    groups = num_groups(num_inputs, scheme.group_size)
    check.expect("qzeros", ("I32",), (groups, words))
    check.expect("scales", FLOATS, (groups, words * 8))
    return words * 8, num_inputs


def _packed_shape(check: _Check, scheme: PackedIntegers) -> tuple[int, int]:
    num_outputs, words = check.matrix("weight_packed", ("I32",))
    in_word = 32 // scheme.bits
    num_inputs = words * in_word
    groups = num_groups(num_inputs, scheme.group_size)
    check.expect("weight_scale", FLOATS, (num_outputs, groups))
    if not scheme.is_symmetric:
        check.expect("weight_zero_point", ("I32",), (-(-num_outputs // in_word), groups))
    if check.has("weight_g_idx"):
        check.expect("weight_g_idx", ("I32",), (num_inputs,))
    return num_outputs, num_inputs


def _eight_bits_shape(check: _Check, scheme: EightBits) -> tuple[int, int]:
    num_outputs, num_inputs = check.matrix("weight", ("F8_E4M3" if scheme.is_float else "I8",))
    if scheme.block is not None:
        rows, columns = scheme.block
        blocks = -(-num_inputs // columns)
        # Rows that `selected_parts.py` takes from several blocks have a scale each.
        check.expect(scheme.scale_name, FLOATS, (-(-num_outputs // rows), blocks), (num_outputs, blocks))
        return num_outputs, num_inputs
    check.expect(scheme.scale_name, FLOATS, (num_outputs, 1), (num_outputs,), (1,), ())
    if scheme.activations == "static":
        check.expect("input_scale", FLOATS, (1,), ())
    return num_outputs, num_inputs


def _four_bits_shape(check: _Check) -> tuple[int, int]:
    state = check.state()
    shape, block = state.get("shape"), state.get("blocksize")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(size) is int and size > 0 for size in shape):
        raise check.damaged(f"states the shape {quoted(str(shape))}")
    if type(block) is not int or block <= 0:
        raise check.damaged(f"states blocks of {quoted(str(block))} elements")
    num_elements = math.prod(shape)
    if num_elements % 2 != 0:
        raise check.damaged(f"states the shape {quoted(str(shape))}, expected an even number of elements")
    check.expect("weight", ("U8",), (num_elements // 2, 1), (num_elements // 2,))
    num_blocks = -(-num_elements // block)
    check.expect("weight.quant_map", ("F32",), (16,))
    is_nested = check.has("weight.nested_absmax")
    check.expect("weight.absmax", ("U8",) if is_nested else ("F32",), (num_blocks,))
    if is_nested:
        check.expect("weight.nested_quant_map", ("F32",), (256,))
        nested_block = state.get("nested_blocksize")
        if type(nested_block) is not int or nested_block <= 0:
            raise check.damaged(f"states nested blocks of {quoted(str(nested_block))} elements")
        offset = state.get("nested_offset", 0.0)
        if type(offset) not in (int, float) or not -1e30 < offset < 1e30:  # type: ignore[operator]
            raise check.damaged(f"states the `nested_offset` {quoted(str(offset))}, expected a finite number")
        check.expect("weight.nested_absmax", ("F32",), (-(-num_blocks // nested_block),))
    return shape[0], shape[1]

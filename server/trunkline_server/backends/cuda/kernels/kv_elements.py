"""Elements of K and V in the pool's formats: rounded when stored, converted exactly when loaded.

Every stored element converts exactly to the activations' dtype (bf16 and f16 represent e4m3 and integers up to 127), so
a product with it rounds nothing. Its scale multiplies scores and weights, not elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import E4M3_MAX, INTERPRETED, e4m3_codes, from_e4m3, narrow

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvPool

# Kinds of elements, as kernels know them.
FLOAT = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)
INT4 = tl.constexpr(3)
KINDS = {"f32": FLOAT, "f16": FLOAT, "bf16": FLOAT, "fp8": FP8, "int8": INT8, "int4": INT4}

# Adding and subtracting it rounds to whole numbers, to nearest even.
_ROUND_SHIFT = tl.constexpr(12582912.0)
_LARGEST_F32 = tl.constexpr(3.4028234663852886e38)
# A head whose largest magnitude is smaller is stored as zeros.
_TINY = tl.constexpr(1e-30)
# Number of candidate scales of int4, which put a head's largest magnitude at different half steps. Beyond 16 half steps
# it saturates at the last level, 15.
_NUM_PLACES = tl.constexpr(6)


class KvLayer(NamedTuple):
    """K and V of a layer, as kernels take them. `KvLayout` explains the numbers.

    means: of the keys, and their distance between KV heads; see `KeyScaling`. Read only if there are some.
    """

    pool: torch.Tensor
    scales: torch.Tensor
    means: torch.Tensor
    means_stride: int
    piece_elements: int
    piece_scales: int
    values_offset: int
    values_scales_offset: int
    first_keys_offset: int
    first_scales_offset: int

    @staticmethod
    def of(pool: KvPool, layer: int) -> KvLayer:
        layout, elements = pool.layout, pool.elements(layer)
        means = elements if pool.key_scaling is None else pool.key_scaling.means[layer]
        return KvLayer(
            elements, pool.scales(layer), means, means.stride(0), layout.piece_elements, layout.piece_scales,
            layout.values_offset, layout.num_kv_heads * layout.block_size, layout.first_keys_offset,
            layout.first_scales_offset,
        )  # fmt: skip


@triton.jit
def load_elements(pointers, mask, KIND: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Loads a tile [ROWS, SIZE] of DTYPE from pointers [ROWS, SIZE], or [ROWS, SIZE / 2] for INT4; masked elements are
    0.

    mask: None or of the pointers' shape. INT4 elements are odd numbers from -15 to 15; masked ones are -15.
    """
    stored = tl.load(pointers) if mask is None else tl.load(pointers, mask, other=0)
    if KIND == FLOAT:
        elements = stored if stored.dtype == DTYPE else narrow(stored.to(tl.float32), DTYPE)
    elif KIND == FP8:
        elements = from_e4m3(stored, DTYPE)
    elif KIND == INT8:
        elements = _from_integer(stored, DTYPE)
    else:
        pairs = tl.join(stored & 15, stored >> 4).to(tl.int8) * 2 - 15
        elements = _from_integer(tl.reshape(pairs, [ROWS, SIZE]), DTYPE)
    return elements


@triton.jit
def _from_integer(stored, DTYPE: tl.constexpr):
    return narrow(stored.to(tl.float32), DTYPE) if INTERPRETED else stored.to(DTYPE)


@triton.jit
def fp8_of(x):
    """Converts x [ROWS, SIZE] f32 to e4m3 codes in u8; also returns the scale of each row, bf16 as f32."""
    scale, is_finite = _scale(x, E4M3_MAX)
    scaled = x * _inverse(scale)[:, None]
    codes = e4m3_codes(tl.minimum(tl.abs(scaled), E4M3_MAX)) | tl.where(scaled < 0, 0x80, 0)
    return codes.to(tl.uint8), tl.where(is_finite, scale, float("nan"))


@triton.jit
def int8_of(x):
    """Converts x [ROWS, SIZE] f32 to i8; also returns the scale of each row."""
    scale, is_finite = _scale(x, 127.0)
    scaled = tl.minimum(tl.maximum(x * _inverse(scale)[:, None], -127.0), 127.0)
    rounded = (scaled + _ROUND_SHIFT) - _ROUND_SHIFT
    # A non-finite element has no integer; the NaN scale marks it.
    return tl.where(is_finite[:, None], rounded, 0.0).to(tl.int8), tl.where(is_finite, scale, float("nan"))


@triton.jit
def int4_of(x, D: tl.constexpr, SIZE: tl.constexpr):
    """Converts x [ROWS, SIZE] f32, whose first D elements count, to levels 0 to 15, i32; also returns the row scales.

    Level n stands for 2 n - 15 scales. Of `_NUM_PLACES` candidate scales, the first with the least squared error is
    used.
    """
    scale, is_finite = _scale(x, 15.0)
    is_element = (tl.arange(0, SIZE) < D)[None, :]
    best = scale
    best_error = _int4_error(x, scale, is_element)
    for place in tl.static_range(1, _NUM_PLACES):
        tried = _to_bf16(scale * (1.0 - 0.07 * place))
        error = _int4_error(x, tried, is_element)
        best = tl.where(error < best_error, tried, best)
        best_error = tl.minimum(error, best_error)
    levels = tl.where(is_finite[:, None], _int4_levels(x, best), 0.0).to(tl.int32)
    return levels, tl.where(is_finite, best, float("nan"))


@triton.jit
def _int4_levels(x, scale):
    places = x * (0.5 * _inverse(scale))[:, None] + 7.5
    return tl.minimum(tl.maximum((places + _ROUND_SHIFT) - _ROUND_SHIFT, 0.0), 15.0)


@triton.jit
def _int4_error(x, scale, is_element):
    difference = (_int4_levels(x, scale) * 2.0 - 15.0) * scale[:, None] - x
    return tl.sum(tl.where(is_element, difference * difference, 0.0), axis=1)


@triton.jit
def _scale(x, largest):
    """Returns the scale that maps a row's largest magnitude to `largest`, and whether the whole row is finite."""
    magnitudes = tl.abs(x)
    is_number = magnitudes <= _LARGEST_F32
    is_finite = tl.max(tl.where(is_number, 0, 1), axis=1) == 0
    magnitude = tl.max(tl.where(is_number, magnitudes, 0.0), axis=1)
    return _to_bf16(tl.where(magnitude < _TINY, 0.0, tl.div_rn(magnitude, largest))), is_finite


@triton.jit
def _to_bf16(x):
    return narrow(x, tl.bfloat16).to(tl.float32)


@triton.jit
def _inverse(scale):
    return tl.where(scale > 0.0, tl.div_rn(1.0, tl.where(scale > 0.0, scale, 1.0)), 0.0)

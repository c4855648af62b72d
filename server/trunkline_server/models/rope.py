"""Angular frequencies of the rotary embedding, with the scalings of transformers' `modeling_rope_utils`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server.models.config import ModelConfig, RopeScaling
from trunkline_server.models.ops import Rope

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rope(config: ModelConfig) -> Rope:
    """The rotary embedding of `config`, computed in f64 and rounded to f32 once."""
    scaling, dim = config.rope_scaling, config.head_size
    inv_freq = config.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    attention_factor = 1.0
    if scaling.kind == "linear":
        inv_freq = inv_freq / scaling.factor
    elif scaling.kind == "factors":
        inv_freq = inv_freq / np.asarray(scaling.factors, dtype=np.float64)
    elif scaling.kind == "llama3":
        inv_freq = _llama3(inv_freq, scaling)
    elif scaling.kind == "yarn":
        inv_freq, attention_factor = _yarn(inv_freq, config.rope_theta, dim, scaling)
    rounded = inv_freq.astype(np.float32)
    return Rope(dim=dim, inv_freq=tuple(rounded.tolist()), attention_factor=attention_factor)


def _llama3(inv_freq: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    trained = scaling.original_max_position_embeddings
    wavelength = 2 * math.pi / inv_freq
    smooth = (trained / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    stretched = np.where(wavelength > trained / scaling.low_freq_factor, inv_freq / scaling.factor, blended)
    return np.where(wavelength < trained / scaling.high_freq_factor, inv_freq, stretched)


def _yarn(
    inv_freq: NDArray[np.float64], theta: float, dim: int, scaling: RopeScaling
) -> tuple[NDArray[np.float64], float]:
    """YaRN, arXiv:2309.00071, section 3.2 and 3.4: "NTK by parts" and the attention factor."""

    def rotations_to_dim(rotations: float) -> float:
        trained = scaling.original_max_position_embeddings
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = rotations_to_dim(scaling.beta_fast), rotations_to_dim(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0, 1)
    scaled = inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)
    return scaled, _yarn_attention_factor(scaling)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)

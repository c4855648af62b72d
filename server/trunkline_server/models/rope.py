"""Angular frequencies of the rotary embedding, with the scalings of transformers' `modeling_rope_utils`."""

from __future__ import annotations

import math
import struct

from trunkline_server.models.config import ModelConfig, RopeScaling
from trunkline_server.models.ops import Rope


def rope(config: ModelConfig) -> Rope:
    """Returns the rotary embedding of `config`, computed in f64 and rounded to f32 once."""
    return _rope(config.rotary_size, config.positions.theta, config.positions.scaling)


def local_rope(config: ModelConfig) -> Rope:
    """Returns the rotary embedding of layers with a window: unscaled, with a base of its own if the model has one."""
    if config.positions.local_theta is None:
        return rope(config)
    return _rope(config.rotary_size, config.positions.local_theta, RopeScaling())


def layer_rope(config: ModelConfig, layer: int) -> Rope:
    return rope(config) if config.window(layer) is None else local_rope(config)


def _rope(dim: int, theta: float, scaling: RopeScaling) -> Rope:
    inv_freq = [theta ** (-element / dim) for element in range(0, dim, 2)]
    attention_factor = 1.0
    if scaling.kind == "linear":
        inv_freq = [freq / scaling.factor for freq in inv_freq]
    elif scaling.kind == "factors":
        inv_freq = [freq / factor for freq, factor in zip(inv_freq, scaling.factors, strict=True)]
        attention_factor = scaling.attention_factor or 1.0
    elif scaling.kind == "llama3":
        inv_freq = [_llama3(freq, scaling) for freq in inv_freq]
    elif scaling.kind == "yarn":
        inv_freq, attention_factor = _yarn(inv_freq, theta, dim, scaling)
    layout = f"{len(inv_freq)}f"
    rounded = struct.unpack(layout, struct.pack(layout, *inv_freq))
    return Rope(dim=dim, inv_freq=rounded, attention_factor=attention_factor)


def _llama3(inv_freq: float, scaling: RopeScaling) -> float:
    """Scales as Llama 3.1 does: long wavelengths are stretched, short ones kept, those in between blended."""
    trained = scaling.original_max_position_embeddings
    wavelength = 2 * math.pi / inv_freq
    if wavelength < trained / scaling.high_freq_factor:
        return inv_freq
    if wavelength > trained / scaling.low_freq_factor:
        return inv_freq / scaling.factor
    smooth = (trained / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq


def _yarn(inv_freq: list[float], theta: float, dim: int, scaling: RopeScaling) -> tuple[list[float], float]:
    """Scales as YaRN does ("NTK by parts"; arXiv:2309.00071, 3.2 and 3.4). Also returns the attention factor."""

    def rotations_to_dim(rotations: float) -> float:
        trained = scaling.original_max_position_embeddings
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = rotations_to_dim(scaling.beta_fast), rotations_to_dim(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    scaled = []
    for index, freq in enumerate(inv_freq):
        ramp = min(max((index - low) / (high - low), 0.0), 1.0)
        scaled.append(freq / scaling.factor * ramp + freq * (1 - ramp))
    return scaled, _yarn_attention_factor(scaling)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return scaling.magnitude(scaling.mscale) / scaling.magnitude(scaling.mscale_all_dim)
    return scaling.magnitude(1.0)

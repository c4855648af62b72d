"""Reads `ModelConfig` from GGUF's standardized keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trunkline_server.errors import DamagedFile, UnsupportedArchitecture, quoted
from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, NumRows
from trunkline_server.models.config import ModelConfig, RopeScaling, layer_range
from trunkline_server.models.config_json import rope_layers
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import RANK, Pooling, kind_from_gguf
from trunkline_server.models.registry import ARCHITECTURES

SUPPORTED = tuple(sorted({own.gguf.name for own in ARCHITECTURES.values() if own.gguf is not None}))


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeFactors:
    """Divisors of rotary frequencies: contents of `rope_freqs.weight`, and of `rope_factors_long.weight` and `_short`.

    None: the file has no such tensor.
    """

    all: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None
    short: tuple[float, ...] | None = None


def config_from_gguf(
    path: Path,
    metadata: Mapping[str, object],
    *,
    num_rows: NumRows,
    rope_factors: RopeFactors,
) -> ModelConfig:
    """Reads the config of a GGUF file.

    path: for messages; num_rows: returns the rows of the file's tensor with this GGUF name, None if there is none;
    rope_factors: the file's factors of rotary frequencies.
    Raises DamagedFile or UnsupportedArchitecture.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise DamagedFile(path, "metadata key `general.architecture` is missing or not a string")
    if architecture not in SUPPORTED:
        raise UnsupportedArchitecture(f"architecture {quoted(architecture)} of `{path}`", supported=SUPPORTED)
    if (vocab_rows := num_rows("token_embd.weight")) is None:
        raise DamagedFile(path, "tensor `token_embd.weight` is missing")
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    values = Keys(path, own, prefix, "metadata key")
    name = architecture_of(architecture, has_experts=values.integer("expert_count", 0) > 0)
    if name is None:
        raise UnsupportedArchitecture(f"{quoted(architecture)} with experts in `{path}`", supported=SUPPORTED)
    if (encoder := ARCHITECTURES[name].encoder) is not None and encoder.from_gguf is not None:
        return encoder.from_gguf(name, values, vocab_rows, num_rows)
    return _decoder_config(values, name, vocab_rows, num_rows, rope_factors)


def architecture_of(gguf_name: str, *, has_experts: bool) -> str | None:
    """Returns the architecture as which files of a GGUF name are read; None if there is none with experts."""
    of_name = (
        (name, own.gguf) for name, own in ARCHITECTURES.items() if own.gguf is not None and own.gguf.name == gguf_name
    )
    return next((name for name, gguf in of_name if not has_experts or gguf.renormalises is not None), None)


def _decoder_config(
    values: Keys,
    name: str,
    vocab_rows: int,
    num_rows: NumRows,
    rope_factors: RopeFactors,
) -> ModelConfig:
    path, architecture = values.path, ARCHITECTURES[name]
    gguf = architecture.gguf
    assert gguf is not None, "the architecture was found by its name in GGUF"

    def has_tensor(name: str) -> bool:
        return num_rows(name) is not None

    # The layers that predict further tokens come last, and are not used.
    num_layers = values.integer("block_count") - values.integer("nextn_predict_layers", 0)
    num_heads = values.integer("attention.head_count")
    hidden_size = values.integer("embedding_length")
    head_size = values.integer("attention.key_length", hidden_size // max(num_heads, 1))
    windows = _windows(values, gguf, num_layers)
    scaling = _rope_scaling(path, values, gguf, rope_factors)
    own = gguf.fields(values, num_layers, scaling, num_rows)
    fields: Fields = {
        "architecture": name,
        "vocab_size": vocab_rows,
        "hidden_size": hidden_size,
        "mlp.size": values.integer("feed_forward_length"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "norms.eps": values.number(f"attention.layer_norm_{'' if architecture.is_layer_norm else 'rms_'}epsilon"),
        "max_position_embeddings": values.integer("context_length"),
        "positions.theta": values.number("rope.freq_base", gguf.rope_theta),
        "positions.rotated_layers": rope_layers(architecture, num_layers, windows),
        "positions.scaling": scaling,
        "tie_word_embeddings": not has_tensor("output.weight"),
        "attention.bias": has_tensor("blk.0.attn_q.bias") or has_tensor("blk.0.attn_qkv.bias"),
        "attention.output_bias": has_tensor("blk.0.attn_output.bias"),
        "mlp.bias": has_tensor("blk.0.ffn_up.bias"),
        "norms.bias": has_tensor("output_norm.bias"),
        # The first layer may have no attention.
        "attention.query_key_norm": architecture.query_key_norm or has_tensor("blk.0.attn_q_norm.weight"),
        "attention.windows": windows,
        "positions.local_theta": gguf.local_rope_theta(values),
        **({} if "attention.latent" in own else _head_fields(values, head_size, own.get("num_kv_heads"), num_heads)),
        **_expert_fields(values, architecture, num_layers),
        **_pooling_fields(values, num_rows("cls.output.weight")),
    }
    config = ModelConfig.from_fields(architecture.facts() | fields | own)
    if problem := config.problem():
        raise DamagedFile(path, problem)
    _refuse_shapes(path, values, config)
    return config


def _pooling_fields(values: Keys, num_labels: int | None) -> Fields:
    """Returns the fields of how a decoder makes vectors. A reranker has a head with rows for "yes" and "no"."""
    if values.get("pooling_type") == RANK:
        if num_labels != 2:
            raise UnsupportedArchitecture(
                f"a reranker with {num_labels or 'no'} rows of `cls.output.weight` in `{values.path}`",
                supported=("rows for yes and no",),
            )
        return {"pooling": Pooling("last", labels=("LABEL_0",), answer_rows=(0, 1)), "has_output_head": False}
    kind = kind_from_gguf(values.get("pooling_type"))
    return {} if kind is None else {"pooling": Pooling(kind)}


def _head_fields(values: Keys, head_size: int, num_kv_heads: int | None, num_heads: int) -> Fields:
    rotated_size = values.integer("rope.dimension_count", head_size)
    return {
        "num_kv_heads": num_kv_heads or values.integer("attention.head_count_kv", num_heads),
        "head_size": head_size,
        "positions.rotated_size": None if rotated_size == head_size else rotated_size,
    }


def _windows(values: Keys, gguf: GgufKeys, num_layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer; empty if no window has an effect."""
    window = values.integer("attention.sliding_window", 0)
    layers = layer_range(num_layers)
    if window == 0:
        return ()
    if gguf.has_windows and window < values.integer("context_length"):
        return tuple(window for _ in layers)
    if (default := gguf.window_pattern) is None:
        return ()
    marks = values.get("attention.sliding_window_pattern")
    if marks is None or type(marks) is int:
        pattern = values.integer("attention.sliding_window_pattern", default)
        if pattern < 1:
            raise values.wrong("attention.sliding_window_pattern", "a positive number")
        return tuple(window if (layer + 1) % pattern else None for layer in layers)
    if not isinstance(marks, list) or len(marks) < len(layers) or any(type(mark) is not bool for mark in marks):
        raise values.wrong("attention.sliding_window_pattern", f"a number or {len(layers)} booleans")
    windows = tuple(window if mark else None for mark in marks[: len(layers)])
    return windows if any(windows) else ()


def _expert_fields(values: Keys, architecture: Architecture, num_layers: int) -> Fields:
    """Returns the fields that only models with experts state."""
    num_experts = values.integer("expert_count", 0)
    if num_experts == 0 or architecture.gguf is None:
        return {}
    shared = values.integer("expert_shared_feed_forward_length", 0)
    return {
        "experts.num_experts": num_experts,
        "experts.num_used": values.integer("expert_used_count"),
        "experts.size": values.integer("expert_feed_forward_length", values.integer("feed_forward_length")),
        "experts.shared_size": shared if architecture.has_shared_expert else 0,
        "experts.renormalise": architecture.gguf.renormalises,
        "experts.layers": (True,) * len(layer_range(num_layers)),
    }


def _refuse_shapes(path: Path, values: Keys, config: ModelConfig) -> None:
    if (
        config.attention.latent is None
        and values.integer("attention.value_length", config.head_size) != config.head_size
    ):
        raise UnsupportedArchitecture(
            f"a value head size that differs from the key head size {config.head_size} in `{path}`",
            supported=("equal sizes",),
        )
    window = values.integer("attention.sliding_window", 0)
    if 0 < window < config.max_position_embeddings and not config.attention.windows:
        raise UnsupportedArchitecture(
            f"a sliding window of {window} tokens (context {config.max_position_embeddings}) in `{path}`",
            supported=("full attention",),
        )


def _rope_scaling(path: Path, values: Keys, gguf: GgufKeys, rope_factors: RopeFactors) -> RopeScaling:
    kind = values.get("rope.scaling.type")
    # `config_json.py` says which factors a model uses.
    trained = values.integer("rope.scaling.original_context_length", values.integer("context_length"))
    by_length = rope_factors.long if values.integer("context_length") > trained else rope_factors.short
    if by_length is not None:
        attention_factor = values.number("rope.scaling.attn_factor", 1.0)
        return RopeScaling(kind="factors", factors=by_length, attention_factor=attention_factor)
    linear_factor = values.number("rope.scale_linear", 1.0)  # the key in old files
    factor = values.number("rope.scaling.factor", linear_factor)
    if rope_factors.all is not None:
        if kind not in (None, "none"):
            raise UnsupportedArchitecture(
                f"rope scaling {quoted(str(kind))} on top of `rope_freqs.weight` in `{path}`",
                supported=("either of them",),
            )
        return RopeScaling(kind="factors", factors=rope_factors.all)
    if kind in (None, "none") and linear_factor == 1.0:
        return RopeScaling()
    if kind in (None, "linear"):
        return RopeScaling(kind="linear", factor=factor)
    if kind != "yarn":
        raise UnsupportedArchitecture(
            f"rope scaling {quoted(str(kind))} of `{path}`", supported=("none", "linear", "yarn", "rope_freqs.weight")
        )
    if values.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedArchitecture(f"a YaRN extrapolation factor in `{path}`", supported=("1.0",))
    if gguf.yarn is not None:
        return gguf.yarn(values, factor, trained)
    if values.number("rope.scaling.yarn_log_multiplier", 0.0) != 0.0:
        raise UnsupportedArchitecture(f"a YaRN log multiplier in `{path}`", supported=("0.0",))
    # llama.cpp multiplies the paper's factor by this one.
    extra = values.number("rope.scaling.attn_factor", 1.0) * values.number("rope.scaling.yarn_attn_factor", 1.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=trained,
        beta_fast=values.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=values.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=extra * (1.0 + 0.1 * math.log(factor)) if factor > 1.0 else extra,
        truncate=gguf.truncates_yarn,
    )

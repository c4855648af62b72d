"""Reads `ModelConfig` from GGUF's standardized keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunkline_server.errors import DamagedFile, UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_LAYERS, ModelConfig, RopeScaling
from trunkline_server.models.config_encoder import ENCODERS, encoder_from_gguf
from trunkline_server.models.config_recurrent import recurrent_from_gguf
from trunkline_server.models.deepseek.config import experts_from_gguf, latent_from_gguf, scaling_from_gguf
from trunkline_server.models.experts import GPT_OSS_SWIGLU
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import RANK, Pooling, kind_from_gguf

# Maps GGUF's names to those of the registry. Mistral, SmolLM2 and others call themselves "llama" in GGUF.
ARCHITECTURES = {
    "bert": "bert",
    "cohere2": "cohere2",
    "command-r": "cohere",
    "deepseek2": "deepseek_v2",
    "ernie4_5": "ernie4_5",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "glm4": "glm4",
    "gpt-oss": "gpt_oss",
    "granite": "granite",
    "granitehybrid": "granitemoehybrid",
    "granitemoe": "granitemoe",
    "internlm2": "internlm2",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2_moe",
    "llama": "llama",
    "nemotron": "nemotron",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
SUPPORTED = tuple(ARCHITECTURES)

# Architectures with experts, which GGUF marks by their number.
_WITH_EXPERTS = {
    "deepseek_v2": "deepseek_v2", "gpt_oss": "gpt_oss", "granitemoe": "granitemoe",
    "granitemoehybrid": "granitemoehybrid", "lfm2_moe": "lfm2_moe", "llama": "mixtral", "olmoe": "olmoe",
    "qwen2_moe": "qwen2_moe", "qwen3_moe": "qwen3_moe", "qwen3_next": "qwen3_next",
}  # fmt: skip
# The weights of used experts add up to 1. llama.cpp has this in its code for each architecture.
_RENORMALISED = ("gpt_oss", "granitemoe", "granitemoehybrid", "lfm2_moe", "mixtral", "qwen3_moe", "qwen3_next")
LAYER_NORMS = ("cohere", "cohere2", "nemotron", "starcoder2")
# Queries and keys are normalised, though the first layer may have none.
_NORMED_HEADS = ("lfm2", "lfm2_moe", "qwen3_next")
_UNGATED = ("nemotron", "starcoder2")
# Norms of a layer, where they are not those of Llama.
_NORMS: dict[str, tuple[str, ...]] = {
    "cohere": ("input_layernorm",),
    "cohere2": ("input_layernorm",),
    **dict.fromkeys(("exaone4", "olmo2"), ("post_attention_layernorm", "post_feedforward_layernorm")),
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "glm4"),
        ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
}

# Every n-th layer does not rotate. The metadata lacks this number; llama.cpp has it in its code for the architecture.
_SMOLLM3_NOPE_INTERVAL = 4
# Every n-th layer has no window, if the file does not say which.
_WINDOW_PATTERNS = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4}
_LOCAL_ROPE_THETA = 10_000.0
# Layer counts of the largest models, which scale scores by the features per head instead of the head size.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_SOFT_CAPS = {"gemma2": (50.0, 30.0)}
_GPT_OSS: dict[str, Any] = {"attention_sinks": True, "expert_bias": True, "expert_activation": GPT_OSS_SWIGLU}


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
    num_rows: Callable[[str], int | None],
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
    name = ARCHITECTURES[architecture]
    if name in ENCODERS:
        return encoder_from_gguf(values, name, vocab_rows, num_rows)
    return _decoder_config(values, architecture, vocab_rows, num_rows, rope_factors)


def _decoder_config(
    values: Keys,
    architecture: str,
    vocab_rows: int,
    num_rows: Callable[[str], int | None],
    rope_factors: RopeFactors,
) -> ModelConfig:
    path, name = values.path, ARCHITECTURES[architecture]

    def has_tensor(name: str) -> bool:
        return num_rows(name) is not None

    if values.integer("expert_count", 0) > 0:
        name = _WITH_EXPERTS.get(name, name)
        if name not in _WITH_EXPERTS.values():
            raise UnsupportedArchitecture(f"{quoted(architecture)} with experts in `{path}`", supported=SUPPORTED)
    # The layers that predict further tokens come last, and are not used.
    num_layers = values.integer("block_count") - values.integer("nextn_predict_layers", 0)
    num_heads = values.integer("attention.head_count")
    hidden_size = values.integer("embedding_length")
    head_size = values.integer("attention.key_length", hidden_size // max(num_heads, 1))
    windows = _windows(values, architecture, num_layers)
    scaling = _rope_scaling(path, values, rope_factors, is_latent=name == "deepseek_v2")
    recurrent = recurrent_from_gguf(values, name, num_layers, has_tensor)
    fields: dict[str, Any] = dict(
        architecture=name,
        vocab_size=vocab_rows,
        hidden_size=hidden_size,
        intermediate_size=values.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        norm_eps=values.number(f"attention.layer_norm_{'' if name in LAYER_NORMS else 'rms_'}epsilon"),
        max_position_embeddings=values.integer("context_length"),
        rope_theta=values.number("rope.freq_base", 1_000_000.0 if architecture == "gemma3" else 10_000.0),
        rope_layers=_rope_layers(architecture, num_layers, windows),
        rope_scaling=scaling,
        tie_word_embeddings=not has_tensor("output.weight"),
        attention_bias=has_tensor("blk.0.attn_q.bias") or has_tensor("blk.0.attn_qkv.bias"),
        attention_output_bias=has_tensor("blk.0.attn_output.bias"),
        mlp_bias=has_tensor("blk.0.ffn_up.bias"),
        gated_mlp=name not in _UNGATED,
        layer_norms=_NORMS.get(name, ("input_layernorm", "post_attention_layernorm")),
        norm_bias=has_tensor("output_norm.bias"),
        query_key_norm=name in _NORMED_HEADS or has_tensor("blk.0.attn_q_norm.weight"),
        wide_query_key_norm=name in ("olmo2", "olmoe"),
        windows=windows,
        local_rope_theta=_local_rope_theta(values, architecture),
        **_multipliers(values, name),
        **_gemma_fields(values, architecture, head_size, hidden_size // max(num_heads, 1)),
        **_head_fields(values, name, head_size, recurrent.get("num_kv_heads"), num_heads, scaling),
        **_expert_fields(values, name, num_layers, has_tensor),
        **_pooling_fields(values, num_rows("cls.output.weight")),
        **(_GPT_OSS if name == "gpt_oss" else {}),
    )
    config = ModelConfig(**(fields | recurrent))
    if problem := config.problem():
        raise DamagedFile(path, problem)
    _refuse_shapes(path, values, config)
    return config


def _pooling_fields(values: Keys, num_labels: int | None) -> dict[str, Any]:
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


def _head_fields(
    values: Keys, name: str, head_size: int, num_kv_heads: int | None, num_heads: int, scaling: RopeScaling
) -> dict[str, Any]:
    if name == "deepseek_v2":
        return latent_from_gguf(values, scaling)
    rotated_size = values.integer("rope.dimension_count", head_size)
    return {
        "num_kv_heads": num_kv_heads or values.integer("attention.head_count_kv", num_heads),
        "head_size": head_size,
        "rotated_size": None if rotated_size == head_size else rotated_size,
    }


def _windows(values: Keys, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer; empty if no window has an effect."""
    window = values.integer("attention.sliding_window", 0)
    layers = range(min(max(num_layers, 0), MAX_LAYERS))
    if window == 0:
        return ()
    if architecture in ("llama", "phi3") and window < values.integer("context_length"):
        return tuple(window for _ in layers)
    if (default := _WINDOW_PATTERNS.get(architecture)) is None:
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


def _local_rope_theta(values: Keys, architecture: str) -> float | None:
    """Returns the rotary base of layers with a window, where they have no rope scaling."""
    if architecture == "gemma3":
        return values.number("rope.freq_base_swa", _LOCAL_ROPE_THETA)
    if architecture == "olmo2" and values.integer("attention.sliding_window", 0):
        return values.number("rope.freq_base_swa", values.number("rope.freq_base", 10_000.0))
    return None


def _multipliers(values: Keys, name: str) -> dict[str, Any]:
    """Returns the factors that the metadata of Granite and Cohere states."""
    if name in ("cohere", "cohere2"):
        return {"logit_multiplier": values.number("logit_scale")}
    if name not in ("granite", "granitemoe", "granitemoehybrid"):
        return {}
    divisor = values.number("logit_scale")
    if divisor <= 0:
        raise values.wrong("logit_scale", "a positive number")
    return {
        "embedding_multiplier": values.number("embedding_scale", 1.0),
        "residual_multiplier": values.number("residual_scale", 1.0),
        "attention_multiplier": values.number("attention.scale", 1.0),
        "logit_multiplier": 1.0 / divisor,
    }


def _gemma_fields(values: Keys, architecture: str, head_size: int, features_per_head: int) -> dict[str, Any]:
    """Returns the fields that only Gemma has."""
    if architecture not in _GEMMA_27B_LAYERS:
        return {}
    is_largest = values.integer("block_count") == _GEMMA_27B_LAYERS[architecture]
    fields: dict[str, Any] = {
        "query_pre_attn_scalar": float(features_per_head if is_largest else head_size),
    }
    if architecture == "gemma3":
        return fields
    attention_cap, logit_cap = _SOFT_CAPS[architecture]
    return {
        **fields,
        "attention_soft_cap": values.number("attn_logit_softcapping", attention_cap),
        "logit_soft_cap": values.number("final_logit_softcapping", logit_cap),
    }


def _rope_layers(architecture: str, num_layers: int, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    layers = range(min(max(num_layers, 0), MAX_LAYERS))
    if architecture in ("cohere2", "exaone4") and windows:
        return tuple(window is not None for window in windows)
    if architecture == "smollm3":
        return tuple((layer + 1) % _SMOLLM3_NOPE_INTERVAL != 0 for layer in layers)
    return tuple(True for _ in layers)


def _expert_fields(values: Keys, name: str, num_layers: int, has_tensor: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the fields that only models with experts state. name: that of the registry."""
    num_experts = values.integer("expert_count", 0)
    if num_experts == 0:
        return {}
    if name in ("deepseek_v2", "lfm2_moe"):
        experts = experts_from_gguf(values, num_layers, has_tensor)
        return experts | ({"renormalise_experts": True} if name in _RENORMALISED else {})
    shared = values.integer("expert_shared_feed_forward_length", 0)
    return {
        "num_experts": num_experts,
        "num_experts_per_token": values.integer("expert_used_count"),
        "expert_size": values.integer("expert_feed_forward_length", values.integer("feed_forward_length")),
        "shared_expert_size": shared if name in ("qwen2_moe", "qwen3_next") else 0,
        "renormalise_experts": name in _RENORMALISED,
        "expert_layers": (True,) * min(max(num_layers, 0), MAX_LAYERS),
    }


def _refuse_shapes(path: Path, values: Keys, config: ModelConfig) -> None:
    if config.latent is None and values.integer("attention.value_length", config.head_size) != config.head_size:
        raise UnsupportedArchitecture(
            f"a value head size that differs from the key head size {config.head_size} in `{path}`",
            supported=("equal sizes",),
        )
    window = values.integer("attention.sliding_window", 0)
    if 0 < window < config.max_position_embeddings and not config.windows:
        raise UnsupportedArchitecture(
            f"a sliding window of {window} tokens (context {config.max_position_embeddings}) in `{path}`",
            supported=("full attention",),
        )


def _rope_scaling(path: Path, values: Keys, rope_factors: RopeFactors, *, is_latent: bool) -> RopeScaling:
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
    if is_latent:
        return scaling_from_gguf(values, factor, trained)
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
        # The metadata lacks this; GPT-OSS was trained without.
        truncate=values.prefix != "gpt-oss.",
    )

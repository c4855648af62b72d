"""Reads `ModelConfig` from a `config.json` as transformers writes it, in its older and newer spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trunkline_server.errors import DamagedFile, UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_LAYERS, ModelConfig
from trunkline_server.models.config_encoder import ENCODERS, encoder_config
from trunkline_server.models.config_recurrent import recurrent_from_json
from trunkline_server.models.config_rope import rope_scaling
from trunkline_server.models.deepseek.config import experts_from_json, latent_from_json
from trunkline_server.models.experts import GPT_OSS_SWIGLU
from trunkline_server.models.keys import Keys
from trunkline_server.models.ops import ClampedSwiglu


@dataclass(frozen=True, slots=True)
class _Experts:
    """The same for architectures with experts. size_key: the key of an expert's inner features.

    renormalise: None: as the key says. chooses_layers: keys may name layers without experts.
    """

    size_key: str = "moe_intermediate_size"
    renormalise: bool | None = None
    chooses_layers: bool = False
    has_shared: bool = False
    has_bias: bool = False
    activation: ClampedSwiglu | None = None  # with the defaults of its keys


@dataclass(frozen=True, slots=True)
class _Architecture:
    """The defaults of transformers for keys that `config.json` lacks, and which keys have a meaning."""

    spelling: Mapping[str, str] = field(default_factory=dict)  # see `Keys`
    activation: str = "silu"
    attention_bias: bool | None = None  # None: as the key says
    attention_output_bias: bool | None = None
    biased: bool = False  # the default of the keys
    has_mlp_bias: bool = False
    norm_eps: float = 1e-6
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    gated_mlp: bool = True
    # The fraction of a head that is rotated if the key is absent. None: another fraction than 1 is refused.
    rotated: float | None = None
    # Layers without a window do not rotate, if any layer has one.
    rotates_in_windows: bool = False
    has_multipliers: bool = False
    logit_scale: float | None = None  # the default of this key, if it has a meaning
    query_key_norm: bool = False
    head_size: int | None = None  # None: hidden_size / num_heads
    rope_theta: float = 10_000.0
    tied: bool = False
    # The window if the key is absent. Without `has_windows`, a window that is on (`use_sliding_window`) and shorter
    # than the context is refused. With `has_windows` it applies to every layer, except every n-th one if there is a
    # pattern, and except the first ones if there is `max_window_layers`.
    window: int | None = None
    has_windows: bool = False
    window_pattern: int | None = None
    # Used instead of a pattern: if `use_sliding_window` is on, layers from this one on have the window.
    max_window_layers: int | None = None
    is_gemma: bool = False  # with the scalar and the caps of Gemma 2 and 3
    wide_query_key_norm: bool = False
    attention_sinks: bool = False
    experts: _Experts | None = None
    is_deepseek: bool = False  # with latent attention
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    # Layers with a window rotate without scaling, by a base of their own if there is one.
    has_local_rope: bool = False
    local_rope_theta: float | None = None


_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_ALL_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_GELU = "gelu_pytorch_tanh"
_COHERE = _Architecture(
    spelling={"rms_norm_eps": "layer_norm_eps"}, norm_eps=1e-5, layer_norms=("input_layernorm",), tied=True,
    logit_scale=0.0625,
)  # fmt: skip
_GLM = _Architecture(
    head_size=128, norm_eps=1.5625e-7, rotated=0.5, attention_bias=None, attention_output_bias=False, biased=True,
)  # fmt: skip
_GRANITE = _Architecture(has_multipliers=True, has_mlp_bias=True)
_LFM2 = _Architecture(
    spelling={"rms_norm_eps": "norm_eps"}, attention_bias=False, attention_output_bias=False, norm_eps=1e-5,
    query_key_norm=True, rope_theta=1_000_000.0, tied=True,
)  # fmt: skip
_OLMO2 = _Architecture(norm_eps=1e-5, layer_norms=_POST_NORMS, query_key_norm=True, wide_query_key_norm=True)
_ARCHITECTURES = {
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, has_windows=True, window=4096, window_pattern=4, rotates_in_windows=True),
    "deepseek_v2": _Architecture(is_deepseek=True),
    "deepseek_v3": _Architecture(is_deepseek=True),
    "ernie4_5": _Architecture(
        spelling={"attention_bias": "use_bias", "mlp_bias": "use_bias"}, head_size=128, norm_eps=1e-5,
        has_mlp_bias=True, rope_theta=500_000.0, tied=True,
    ),
    "exaone": _Architecture(
        spelling={"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
                  "hidden_act": "activation_function"},
        norm_eps=1e-5,
    ),
    "exaone4": _Architecture(
        norm_eps=1e-5, layer_norms=_POST_NORMS, query_key_norm=True, has_windows=True, window=4096, window_pattern=4,
        rotates_in_windows=True,
    ),
    "gemma": _Architecture(head_size=256, tied=True, activation=_GELU),
    "gemma2": _Architecture(
        spelling={"hidden_act": "hidden_activation"}, activation=_GELU, layer_norms=_ALL_NORMS,
        head_size=256, tied=True, is_gemma=True, has_windows=True, window=4096, window_pattern=2,
        attention_soft_cap=50.0, logit_soft_cap=30.0,
    ),
    "gemma3_text": _Architecture(
        spelling={"hidden_act": "hidden_activation"}, activation=_GELU, layer_norms=_ALL_NORMS,
        head_size=256, tied=True, is_gemma=True, has_windows=True, window=4096, window_pattern=6, query_key_norm=True,
        rope_theta=1_000_000.0, has_local_rope=True, local_rope_theta=10_000.0,
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, layer_norms=_ALL_NORMS),
    "gpt_oss": _Architecture(
        attention_output_bias=None, biased=True, norm_eps=1e-5, head_size=64, rope_theta=150_000.0, has_windows=True,
        window=128, window_pattern=2, attention_sinks=True,
        experts=_Experts(size_key="intermediate_size", renormalise=True, has_bias=True, activation=GPT_OSS_SWIGLU),
    ),
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE, has_mlp_bias=False,
        experts=_Experts(size_key="intermediate_size", renormalise=True),
    ),
    "granitemoehybrid": replace(_GRANITE, has_mlp_bias=False),
    "internlm2": _Architecture(spelling={"attention_bias": "bias"}),
    "internlm3": _Architecture(
        spelling={"attention_bias": "qkv_bias", "attention_out_bias": "bias", "mlp_bias": "bias"}, has_mlp_bias=True,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "llama": _Architecture(has_mlp_bias=True),
    "mistral": _Architecture(attention_bias=False, attention_output_bias=False, has_windows=True, window=4096),
    "mixtral": _Architecture(
        attention_bias=False, attention_output_bias=False, has_windows=True, rope_theta=1_000_000.0,
        experts=_Experts(size_key="intermediate_size", renormalise=True),
    ),
    "nemotron": _Architecture(
        spelling={"rms_norm_eps": "norm_eps"}, norm_eps=1e-5, norm_bias=True, gated_mlp=False, has_mlp_bias=True,
        activation="relu2", rotated=0.5,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, has_windows=True, window=4096, window_pattern=4, has_local_rope=True),
    "olmoe": _Architecture(
        attention_bias=False, attention_output_bias=False, query_key_norm=True, wide_query_key_norm=True,
        experts=_Experts(size_key="intermediate_size"),
    ),
    "phi3": _Architecture(
        attention_bias=False, attention_output_bias=False, norm_eps=1e-5, rotated=1.0, has_windows=True,
    ),
    "qwen2": _Architecture(
        attention_bias=True, attention_output_bias=False, has_windows=True, window=4096, max_window_layers=28,
    ),
    "qwen2_moe": _Architecture(
        attention_bias=True, attention_output_bias=False, window=4096,
        experts=_Experts(chooses_layers=True, has_shared=True),
    ),
    "qwen3": _Architecture(
        query_key_norm=True, head_size=128, has_windows=True, window=4096, max_window_layers=28,
    ),
    "qwen3_moe": _Architecture(
        query_key_norm=True, has_windows=True, window=4096, max_window_layers=0, experts=_Experts(chooses_layers=True),
    ),
    "qwen3_next": _Architecture(
        query_key_norm=True, head_size=256, rotated=0.25, experts=_Experts(chooses_layers=True, has_shared=True),
    ),
    "seed_oss": _Architecture(head_size=128, attention_output_bias=None, biased=True, has_mlp_bias=True),
    "smollm3": _Architecture(has_mlp_bias=True, rope_theta=2_000_000.0, tied=True),
    "starcoder2": _Architecture(
        spelling={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"}, biased=True,
        norm_eps=1e-5, norm_bias=True, gated_mlp=False, has_mlp_bias=True, activation=_GELU, has_windows=True,
        tied=True,
    ),
}  # fmt: skip

SUPPORTED = tuple(sorted((*_ARCHITECTURES, *ENCODERS)))
# Another name of an activation.
_ALIASES = {"swish": "silu"}


def config_from_json(path: Path, values: Mapping[str, object]) -> ModelConfig:
    """Reads the config from the parsed `config.json` at `path`.

    Raises DamagedFile (a key is missing or impossible) or UnsupportedArchitecture.
    """
    name = values.get("model_type")
    if not isinstance(name, str):
        raise DamagedFile(path, "key `model_type` is missing or not a string")
    if name in ENCODERS:
        return encoder_config(path, name, values)
    if name not in _ARCHITECTURES:
        raise UnsupportedArchitecture(f"architecture {quoted(name)} of `{path}`", supported=SUPPORTED)
    architecture = _ARCHITECTURES[name]
    keys = Keys(path, values, spelling=architecture.spelling)
    _refuse_features(keys, architecture)
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers, max_positions = keys.integer("num_hidden_layers"), keys.integer("max_position_embeddings")
    head_size = keys.integer("head_dim", architecture.head_size or hidden_size // max(num_heads, 1))
    bias = keys.boolean("attention_bias", architecture.biased)
    # ERNIE and StarCoder2 have one key for all biases, InternLM 3 and Seed-OSS one for outputs.
    output_bias = keys.boolean("attention_out_bias", bias and name != "seed_oss")
    windows = _windows(keys, architecture, num_layers, max_positions)
    rope, local_rope_theta = _rope_keys(keys, architecture)
    scaling = rope_scaling(keys, rope, max_positions)
    heads = {
        "num_kv_heads": keys.integer("num_key_value_heads", num_heads),
        "head_size": head_size,
        "rotated_size": _rotated_size(keys, rope, architecture, head_size),
    }
    fields: dict[str, Any] = dict(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        norm_eps=keys.number("rms_norm_eps", architecture.norm_eps),
        max_position_embeddings=max_positions,
        rope_theta=rope.number("rope_theta", keys.number("rope_theta", architecture.rope_theta)),
        rope_layers=_rope_layers(keys, architecture, name, num_layers, windows),
        rope_scaling=scaling,
        tie_word_embeddings=keys.boolean("tie_word_embeddings", architecture.tied),
        attention_bias=bias if architecture.attention_bias is None else architecture.attention_bias,
        attention_output_bias=(
            output_bias if architecture.attention_output_bias is None else architecture.attention_output_bias
        ),
        mlp_bias=architecture.has_mlp_bias and keys.boolean("mlp_bias", False),
        gated_mlp=architecture.gated_mlp,
        layer_norms=architecture.layer_norms,
        norm_bias=architecture.norm_bias,
        query_key_norm=architecture.query_key_norm,
        attention_sinks=architecture.attention_sinks,
        wide_query_key_norm=architecture.wide_query_key_norm,
        windows=windows,
        local_rope_theta=local_rope_theta,
        **_gemma_fields(keys, architecture),
        **_multipliers(keys, architecture),
        **(latent_from_json(keys, scaling) if architecture.is_deepseek else heads),
        **_expert_fields(keys, architecture, name, num_layers),
    )
    config = ModelConfig(**(fields | recurrent_from_json(keys, name, num_layers)))
    if problem := config.problem():
        raise keys.damaged(problem)
    if config.recurrent is None:
        _refuse_window(keys, architecture, config)
    return config


def _gemma_fields(keys: Keys, architecture: _Architecture) -> dict[str, Any]:
    """Returns the fields that only Gemma's configs state."""
    if not architecture.is_gemma:
        return {}

    def cap(key: str, default: float | None) -> float | None:
        return keys.optional_number(key) if key in keys else default

    # Gemma 3 has the key for scores too, but transformers ignores it there.
    has_caps = architecture.attention_soft_cap is not None
    return {
        "query_pre_attn_scalar": keys.number("query_pre_attn_scalar", 256.0),
        "attention_soft_cap": cap("attn_logit_softcapping", architecture.attention_soft_cap) if has_caps else None,
        "logit_soft_cap": cap("final_logit_softcapping", architecture.logit_soft_cap),
    }


def _multipliers(keys: Keys, architecture: _Architecture) -> dict[str, Any]:
    """Returns the factors that the configs of Granite and Cohere state."""
    if architecture.logit_scale is not None:
        return {"logit_multiplier": keys.number("logit_scale", architecture.logit_scale)}
    if not architecture.has_multipliers:
        return {}
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
    divisor = keys.number("logits_scaling", 1.0)
    if divisor <= 0:
        raise keys.wrong("logits_scaling", "a positive number")
    return {name: keys.number(name, 1.0) for name in names} | {"logit_multiplier": 1.0 / divisor}


def _expert_fields(keys: Keys, architecture: _Architecture, name: str, num_layers: int) -> dict[str, Any]:
    """Returns the fields that only models with experts state."""
    if architecture.is_deepseek:
        return experts_from_json(keys, name, num_layers)
    experts = architecture.experts
    if experts is None:
        return {}
    num_experts = keys.integer("num_experts" if "num_experts" in keys else "num_local_experts")
    renormalise = keys.boolean("norm_topk_prob", False) if experts.renormalise is None else experts.renormalise
    return {
        "num_experts": num_experts,
        "num_experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_size": keys.integer(experts.size_key),
        "shared_expert_size": keys.integer("shared_expert_intermediate_size") if experts.has_shared else 0,
        "renormalise_experts": renormalise,
        "expert_bias": experts.has_bias,
        "expert_activation": _expert_activation(keys, experts.activation),
        "expert_layers": _expert_layers(keys, experts, num_layers),
    }


def _expert_activation(keys: Keys, default: ClampedSwiglu | None) -> ClampedSwiglu | None:
    if default is None:
        return None
    alpha, limit = keys.number("swiglu_alpha", default.alpha), keys.number("swiglu_limit", default.limit)
    return ClampedSwiglu(alpha=alpha, limit=limit)


def _expert_layers(keys: Keys, experts: _Experts, num_layers: int) -> tuple[bool, ...]:
    layers = range(min(max(num_layers, 0), MAX_LAYERS))
    if not experts.chooses_layers:
        return tuple(True for _ in layers)
    interval, others = keys.integer("decoder_sparse_step", 1), keys.get("mlp_only_layers") or []
    if interval < 1:
        raise keys.damaged(f"key `decoder_sparse_step` is {interval}, must be positive")
    if not isinstance(others, list) or any(type(layer) is not int for layer in others):
        raise keys.wrong("mlp_only_layers", "a list of layers")
    return tuple((layer + 1) % interval == 0 and layer not in others for layer in layers)


def _refuse_features(keys: Keys, architecture: _Architecture) -> None:
    activation, known = keys.get("hidden_act"), architecture.activation
    if activation is not None and activation != known and _ALIASES.get(str(activation)) != known:
        raise UnsupportedArchitecture(f"activation {quoted(str(activation))} of `{keys.path}`", supported=(known,))
    if keys.boolean("use_qk_norm", False):
        raise UnsupportedArchitecture(f"`use_qk_norm` in `{keys.path}`", supported=("false",))
    if keys.get("clip_qkv") is not None:
        raise UnsupportedArchitecture(f"`clip_qkv` in `{keys.path}`", supported=("null",))
    if keys.boolean("use_bidirectional_attention", False):
        raise UnsupportedArchitecture(f"bidirectional attention in `{keys.path}`", supported=("causal attention",))


def _rope_keys(keys: Keys, architecture: _Architecture) -> tuple[Keys, float | None]:
    """Returns the keys that state the rotary embedding of layers without a window, and the others' rotary base."""
    rope = keys.nested("rope_parameters") or keys.nested("rope_scaling") or Keys(keys.path, {})
    if not architecture.has_local_rope:
        return rope, None
    shared = keys.number("rope_theta", architecture.rope_theta)
    local = keys.number("rope_local_base_freq", architecture.local_rope_theta or shared)
    if (windowed := rope.nested("sliding_attention")) is not None:
        local = windowed.number("rope_theta", local)
        if windowed.get("rope_type") not in (None, "default"):
            raise UnsupportedArchitecture(
                f"rope scaling of sliding-window layers in `{keys.path}`", supported=("default",)
            )
    return rope.nested("full_attention") or rope, local


def _rotated_size(keys: Keys, rope: Keys, architecture: _Architecture, head_size: int) -> int | None:
    fraction = keys.number("partial_rotary_factor", architecture.rotated or 1.0)
    fraction = rope.number("partial_rotary_factor", fraction)
    if architecture.rotated is None and fraction != 1.0:
        raise UnsupportedArchitecture(
            f"partial rotary embedding in `{keys.path}`", supported=("full rotary embedding",)
        )
    if not 0 < fraction <= 1:
        raise keys.wrong("partial_rotary_factor", "a number from 0 to 1")
    return None if fraction == 1.0 else int(head_size * fraction)


def _rope_layers(
    keys: Keys, architecture: _Architecture, name: str, num_layers: int, windows: tuple[int | None, ...]
) -> tuple[bool, ...]:
    num_layers = min(max(num_layers, 0), MAX_LAYERS)
    if architecture.rotates_in_windows and any(windows):
        return tuple(window is not None for window in windows)
    if name != "smollm3":
        return (True,) * num_layers
    marks = keys.get("no_rope_layers")
    if marks is None:
        interval = keys.integer("no_rope_layer_interval", 4)
        if interval < 1:
            raise keys.damaged(f"key `no_rope_layer_interval` is {interval}, must be positive")
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    # Despite the key's name, 1 marks a layer that rotates.
    if not isinstance(marks, list) or len(marks) < num_layers or any(mark not in (0, 1) for mark in marks):
        raise keys.damaged(f"key `no_rope_layers` is not a list of {num_layers} zeros and ones")
    return tuple(mark == 1 for mark in marks[:num_layers])


def _windows(keys: Keys, architecture: _Architecture, num_layers: int, max_positions: int) -> tuple[int | None, ...]:
    """Returns the window of each layer; empty if no window has an effect."""
    # An absent key means transformers' default; `null` means no window.
    window = keys.integer("sliding_window", 0) if "sliding_window" in keys else (architecture.window or 0)
    if not architecture.has_windows or window == 0:
        return ()
    layers = range(min(max(num_layers, 0), MAX_LAYERS))
    if architecture.max_window_layers is not None:
        first = keys.integer("max_window_layers", architecture.max_window_layers)
        return _later_windows(keys, layers, window, first) if window < max_positions else ()
    if architecture.window_pattern is None:
        return tuple(window for _ in layers) if window < max_positions else ()
    # A window also selects the rotary embedding, so it counts even if it is as long as the context.
    if (layer_types := _layer_types(keys)) is None:
        pattern = keys.integer("sliding_window_pattern", architecture.window_pattern)
        if pattern < 1:
            raise keys.damaged(f"key `sliding_window_pattern` is {pattern}, must be positive")
        return tuple(window if (layer + 1) % pattern else None for layer in layers)
    return _windows_of_types(keys, layer_types, layers, window)


def _later_windows(keys: Keys, layers: range, window: int, first: int) -> tuple[int | None, ...]:
    """Returns the windows of layers that `layer_types` names, otherwise of those from `first` on; empty if off."""
    layer_types = _layer_types(keys)
    if not keys.boolean("use_sliding_window", False):
        if layer_types is not None and "sliding_attention" in layer_types:
            raise keys.damaged("key `layer_types` names layers with a window, but `use_sliding_window` is off")
        return ()
    if layer_types is not None:
        windows = _windows_of_types(keys, layer_types, layers, window)
    else:
        windows = tuple(window if layer >= first else None for layer in layers)
    return windows if any(windows) else ()


def _windows_of_types(keys: Keys, layer_types: list[str], layers: range, window: int) -> tuple[int | None, ...]:
    if len(layer_types) < len(layers):
        raise keys.damaged(f"key `layer_types` has {len(layer_types)} entries for {len(layers)} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types[: len(layers)])


def _layer_types(keys: Keys) -> list[str] | None:
    layer_types = keys.get("layer_types")
    if not isinstance(layer_types, list):
        return None
    if not all(kind in ("full_attention", "sliding_attention") for kind in layer_types):
        raise UnsupportedArchitecture(f"a layer type in `layer_types` of `{keys.path}`", supported=("full_attention",))
    return layer_types


def _refuse_window(keys: Keys, architecture: _Architecture, config: ModelConfig) -> None:
    """Refuses a window that takes effect, for architectures whose windows are not supported."""
    if architecture.has_windows:
        return
    if (layer_types := _layer_types(keys)) is not None:
        is_on = "sliding_attention" in layer_types
    else:
        is_on = keys.boolean("use_sliding_window", False)
    # An absent key means transformers' default; `null` means no window.
    has_key = "sliding_window" in keys
    window = keys.integer("sliding_window", 0) if has_key else (architecture.window or 0)
    if is_on and 0 < window < config.max_position_embeddings:
        raise UnsupportedArchitecture(
            f"a sliding window of {window} tokens (context {config.max_position_embeddings}) in `{keys.path}`",
            supported=("full attention",),
        )

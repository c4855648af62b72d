"""Reads `ModelConfig` from a `config.json` as transformers writes it, in its older and newer spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trunkline_server.errors import DamagedFile, UnsupportedArchitecture, quoted
from trunkline_server.models.architecture import Architecture, Fields, JsonKeys
from trunkline_server.models.config import ModelConfig, layer_range
from trunkline_server.models.config_rope import rope_scaling
from trunkline_server.models.keys import Keys
from trunkline_server.models.registry import ARCHITECTURES, SUPPORTED

# transformers' names of activations, and another name of one.
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "relu_squared": "relu2"}
_ALIASES = {"swish": "silu"}


def config_from_json(path: Path, values: Mapping[str, object]) -> ModelConfig:
    """Reads the config from the parsed `config.json` at `path`.

    Raises DamagedFile (a key is missing or impossible) or UnsupportedArchitecture.
    """
    name = values.get("model_type")
    if not isinstance(name, str):
        raise DamagedFile(path, "key `model_type` is missing or not a string")
    if name not in ARCHITECTURES:
        raise UnsupportedArchitecture(f"architecture {quoted(name)} of `{path}`", supported=SUPPORTED)
    architecture = ARCHITECTURES[name]
    if architecture.encoder is not None:
        return architecture.encoder.from_json(name, Keys(path, values))
    json = architecture.json
    keys = Keys(path, values, spelling=json.spelling)
    _refuse_features(keys, architecture)
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers, max_positions = keys.integer("num_hidden_layers"), keys.integer("max_position_embeddings")
    head_size = keys.integer("head_dim", json.head_size or hidden_size // max(num_heads, 1))
    bias = keys.boolean("attention_bias", json.biased)
    output_bias = keys.boolean("attention_out_bias", bias if json.output_biased is None else json.output_biased)
    windows = _windows(keys, json, num_layers, max_positions)
    rope, local_rope_theta = _rope_keys(keys, json)
    scaling = rope_scaling(keys, rope, max_positions)
    own = json.fields(keys, num_layers, scaling)
    fields: Fields = {
        "architecture": name,
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": hidden_size,
        "mlp.size": keys.integer("intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": keys.integer("num_key_value_heads", num_heads),
        "head_size": head_size,
        "norms.eps": keys.number("rms_norm_eps", json.norm_eps),
        "max_position_embeddings": max_positions,
        "positions.theta": rope.number("rope_theta", keys.number("rope_theta", json.rope_theta)),
        "positions.rotated_layers": rope_layers(architecture, num_layers, windows),
        "positions.scaling": scaling,
        "positions.rotated_size": _rotated_size(keys, rope, json, head_size),
        "tie_word_embeddings": keys.boolean("tie_word_embeddings", json.tied),
        "attention.bias": bias if json.attention_bias is None else json.attention_bias,
        "attention.output_bias": output_bias if json.attention_output_bias is None else json.attention_output_bias,
        "mlp.bias": json.has_mlp_bias and keys.boolean("mlp_bias", False),
        "attention.windows": windows,
        "positions.local_theta": local_rope_theta,
        **architecture.facts(),
        **_expert_fields(keys, architecture, num_layers),
    }
    config = ModelConfig.from_fields(fields | own)
    if config.recurrent is not None and not any(config.recurrent.layers):
        # Some models of families with recurrent layers have attention in all layers.
        config = replace(config, recurrent=None)
    if problem := config.problem():
        raise keys.damaged(problem)
    if config.recurrent is None:
        _refuse_window(keys, json, config)
    return config


def _expert_fields(keys: Keys, architecture: Architecture, num_layers: int) -> Fields:
    """Returns the fields that only models with experts state."""
    json = architecture.json
    if json.expert_size_key is None:
        return {}
    renormalise = keys.boolean("norm_topk_prob", False) if json.renormalises is None else json.renormalises
    has_shared = architecture.has_shared_expert
    return {
        "experts.num_experts": keys.integer("num_experts" if "num_experts" in keys else "num_local_experts"),
        "experts.num_used": keys.integer("num_experts_per_tok"),
        "experts.size": keys.integer(json.expert_size_key),
        "experts.shared_size": keys.integer("shared_expert_intermediate_size") if has_shared else 0,
        "experts.renormalise": renormalise,
        "experts.layers": _expert_layers(keys, json, num_layers),
    }


def _expert_layers(keys: Keys, json: JsonKeys, num_layers: int) -> tuple[bool, ...]:
    layers = layer_range(num_layers)
    if not json.chooses_layers:
        return tuple(True for _ in layers)
    interval, others = keys.integer("decoder_sparse_step", 1), keys.get("mlp_only_layers") or []
    if interval < 1:
        raise keys.damaged(f"key `decoder_sparse_step` is {interval}, must be positive")
    if not isinstance(others, list) or any(type(layer) is not int for layer in others):
        raise keys.wrong("mlp_only_layers", "a list of layers")
    return tuple((layer + 1) % interval == 0 and layer not in others for layer in layers)


def _refuse_features(keys: Keys, architecture: Architecture) -> None:
    activation, known = keys.get("hidden_act"), _ACTIVATIONS[architecture.activation]
    if activation is not None and activation != known and _ALIASES.get(str(activation)) != known:
        raise UnsupportedArchitecture(f"activation {quoted(str(activation))} of `{keys.path}`", supported=(known,))
    if keys.boolean("use_qk_norm", False):
        raise UnsupportedArchitecture(f"`use_qk_norm` in `{keys.path}`", supported=("false",))
    if keys.get("clip_qkv") is not None:
        raise UnsupportedArchitecture(f"`clip_qkv` in `{keys.path}`", supported=("null",))
    if keys.boolean("use_bidirectional_attention", False):
        raise UnsupportedArchitecture(f"bidirectional attention in `{keys.path}`", supported=("causal attention",))


def _rope_keys(keys: Keys, json: JsonKeys) -> tuple[Keys, float | None]:
    """Returns the keys that state the rotary embedding of layers without a window, and the others' rotary base."""
    rope = keys.nested("rope_parameters") or keys.nested("rope_scaling") or Keys(keys.path, {})
    if not json.has_local_rope:
        return rope, None
    shared = keys.number("rope_theta", json.rope_theta)
    local = keys.number("rope_local_base_freq", json.local_rope_theta or shared)
    if (windowed := rope.nested("sliding_attention")) is not None:
        local = windowed.number("rope_theta", local)
        if windowed.get("rope_type") not in (None, "default"):
            raise UnsupportedArchitecture(
                f"rope scaling of sliding-window layers in `{keys.path}`", supported=("default",)
            )
    return rope.nested("full_attention") or rope, local


def _rotated_size(keys: Keys, rope: Keys, json: JsonKeys, head_size: int) -> int | None:
    fraction = keys.number("partial_rotary_factor", json.rotated or 1.0)
    fraction = rope.number("partial_rotary_factor", fraction)
    if json.rotated is None and fraction != 1.0:
        raise UnsupportedArchitecture(
            f"partial rotary embedding in `{keys.path}`", supported=("full rotary embedding",)
        )
    if not 0 < fraction <= 1:
        raise keys.wrong("partial_rotary_factor", "a number from 0 to 1")
    return None if fraction == 1.0 else int(head_size * fraction)


def rope_layers(architecture: Architecture, num_layers: int, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Returns for each layer whether it rotates queries and keys."""
    if architecture.rotates_in_windows and any(windows):
        return tuple(window is not None for window in windows)
    return (True,) * len(layer_range(num_layers))


def _windows(keys: Keys, json: JsonKeys, num_layers: int, max_positions: int) -> tuple[int | None, ...]:
    """Returns the window of each layer; empty if no window has an effect."""
    # An absent key means transformers' default; `null` means no window.
    window = keys.integer("sliding_window", 0) if "sliding_window" in keys else (json.window or 0)
    if not json.has_windows or window == 0:
        return ()
    layers = layer_range(num_layers)
    if json.max_window_layers is not None:
        first = keys.integer("max_window_layers", json.max_window_layers)
        return _later_windows(keys, layers, window, first) if window < max_positions else ()
    if json.window_pattern is None:
        return tuple(window for _ in layers) if window < max_positions else ()
    # A window also selects the rotary embedding, so it counts even if it is as long as the context.
    if (layer_types := _layer_types(keys)) is None:
        pattern = keys.integer("sliding_window_pattern", json.window_pattern)
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


def _refuse_window(keys: Keys, json: JsonKeys, config: ModelConfig) -> None:
    """Refuses a window that takes effect, for architectures whose windows are not supported."""
    if json.has_windows:
        return
    if (layer_types := _layer_types(keys)) is not None:
        is_on = "sliding_attention" in layer_types
    else:
        is_on = keys.boolean("use_sliding_window", False)
    # An absent key means transformers' default; `null` means no window.
    has_key = "sliding_window" in keys
    window = keys.integer("sliding_window", 0) if has_key else (json.window or 0)
    if is_on and 0 < window < config.max_position_embeddings:
        raise UnsupportedArchitecture(
            f"a sliding window of {window} tokens (context {config.max_position_embeddings}) in `{keys.path}`",
            supported=("full attention",),
        )

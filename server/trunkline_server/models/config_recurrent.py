"""Recurrent layers: their shape, and how `config.json` and GGUF state it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_FEATURES, MAX_LAYERS, Recurrent
from trunkline_server.models.keys import Keys

_RECURRENT = ("conv", "mamba", "linear_attention")
_ATTENTION = ("attention", "full_attention")
# transformers writes infinity in two ways.
_NO_LIMIT = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def recurrent_from_json(keys: Keys, name: str, num_layers: int) -> dict[str, Any]:
    """Returns the fields of families with recurrent layers; none for other architectures."""
    readers = {"granitemoehybrid": _granite, "lfm2": _lfm2, "lfm2_moe": _lfm2_moe, "qwen3_next": _qwen3_next}
    if name not in readers:
        return {}
    fields = readers[name](keys, num_layers)
    # Some models of these families have attention in all layers.
    return fields if any(fields["recurrent"].layers) else {**fields, "recurrent": None}


def recurrent_from_gguf(values: Keys, name: str, num_layers: int, has_tensor: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the same from the metadata of GGUF, with the key/value heads of layers that have them."""
    if name == "qwen3_next":
        return _delta_from_gguf(values, num_layers)
    if name not in ("granitemoehybrid", "lfm2", "lfm2_moe"):
        return {}
    counts = values.get("attention.head_count_kv")
    if not isinstance(counts, list) or len(counts) != num_layers or any(type(count) is not int for count in counts):
        raise values.wrong("attention.head_count_kv", f"{num_layers} integers")
    others = {count for count in counts if count != 0}
    if len(others) > 1:
        raise values.wrong("attention.head_count_kv", "one number for all layers with attention, 0 for others")
    layers = tuple(count == 0 for count in counts)
    fields: dict[str, Any] = {"num_kv_heads": others.pop() if others else 1}
    if name != "granitemoehybrid":
        return fields | {"recurrent": Recurrent(layers=layers, conv_width=values.integer("shortconv.l_cache"))}
    if (groups := values.integer("ssm.group_count", 1)) != 1:
        raise UnsupportedArchitecture(f"`ssm.group_count` {groups} in `{values.path}`", supported=("1",))
    has_bias = True in layers and has_tensor(f"blk.{layers.index(True)}.ssm_conv1d.bias")
    recurrent = _state_from_gguf(values, layers, num_keys=1, conv_bias=has_bias)
    shared = values.integer("expert_shared_feed_forward_length", values.integer("feed_forward_length"))
    rotates = values.boolean("rope.scaling.finetuned", False)
    return fields | {
        "recurrent": recurrent,
        "intermediate_size": shared,
        "rope_layers": (rotates,) * num_layers,
        **({"shared_expert_size": shared, "has_shared_gate": False} if values.integer("expert_count", 0) else {}),
    }


def _delta_from_gguf(values: Keys, num_layers: int) -> dict[str, Any]:
    marks = values.get("attention.recurrent_layers")
    if marks is None:
        layers = _by_interval(values, num_layers)
    elif isinstance(marks, list) and len(marks) >= num_layers and all(type(mark) is bool for mark in marks):
        layers = tuple(marks[:num_layers])
    else:
        raise values.wrong("attention.recurrent_layers", f"{num_layers} booleans")
    recurrent = _state_from_gguf(values, layers, num_keys=values.integer("ssm.group_count"), conv_bias=False)
    return {"recurrent": recurrent if any(layers) else None, "gated_attention": True}


def _state_from_gguf(values: Keys, layers: tuple[bool, ...], *, num_keys: int, conv_bias: bool) -> Recurrent:
    inner, num_heads = values.integer("ssm.inner_size"), values.integer("ssm.time_step_rank")
    recurrent = Recurrent(
        layers=layers,
        conv_width=values.integer("ssm.conv_kernel"),
        conv_bias=conv_bias,
        num_heads=num_heads,
        value_size=inner // max(num_heads, 1),
        num_keys=num_keys,
        key_size=values.integer("ssm.state_size"),
    )
    if recurrent.num_heads * recurrent.value_size != inner:
        raise values.damaged(f"{inner} features (`ssm.inner_size`) cannot be divided into {num_heads} heads evenly")
    return recurrent


def _by_interval(values: Keys, num_layers: int) -> tuple[bool, ...]:
    """Returns which layers are recurrent where every n-th has attention."""
    interval = values.integer("full_attention_interval", 4)
    if interval < 1:
        raise values.damaged(f"key `full_attention_interval` is {interval}, must be positive")
    return tuple((layer + 1) % interval != 0 for layer in range(min(max(num_layers, 0), MAX_LAYERS)))


def _lfm2(keys: Keys, num_layers: int) -> dict[str, Any]:
    return _convolutions(keys, num_layers) | {"intermediate_size": _lfm2_intermediate_size(keys)}


def _lfm2_moe(keys: Keys, num_layers: int) -> dict[str, Any]:
    first = keys.integer("num_dense_layers", 2)
    return _convolutions(keys, num_layers) | {
        "num_experts": keys.integer("num_experts"),
        "num_experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_size": keys.integer("moe_intermediate_size"),
        "has_shared_gate": False,
        "expert_multiplier": keys.number("routed_scaling_factor", 1.0),
        "renormalise_experts": keys.boolean("norm_topk_prob", True),
        "sigmoid_experts": True,
        "has_choice_bias": keys.boolean("use_expert_bias", True),
        "expert_layers": tuple(layer >= first for layer in range(min(max(num_layers, 0), MAX_LAYERS))),
    }


def _convolutions(keys: Keys, num_layers: int) -> dict[str, Any]:
    """Returns which layers of LFM2 convolve, and over how many positions."""
    if keys.boolean("conv_bias", False):
        raise UnsupportedArchitecture(f"`conv_bias` in `{keys.path}`", supported=("false",))
    layers = _layers(keys, num_layers)
    if layers is None:
        attention = keys.get("full_attn_idxs")
        if not isinstance(attention, list) or not all(type(layer) is int for layer in attention):
            raise keys.wrong("full_attn_idxs", "a list of layers")
        layers = tuple(layer not in attention for layer in range(min(max(num_layers, 0), MAX_LAYERS)))
    return {"recurrent": Recurrent(layers=layers, conv_width=keys.integer("conv_L_cache", 3))}


def _lfm2_intermediate_size(keys: Keys) -> int:
    """Returns the features inside the MLP: by default two thirds of what the key states, rounded up."""
    stated = keys.integer("block_ff_dim" if "block_ff_dim" in keys else "intermediate_size", 12_288)
    if not keys.boolean("block_auto_adjust_ff_dim", True):
        return stated
    multiple = keys.integer("block_multiple_of", 256)
    if multiple < 1:
        raise keys.wrong("block_multiple_of", "a positive integer")
    size = keys.number("block_ffn_dim_multiplier", 1.0) * (2 * stated // 3)
    if not 0 < size <= MAX_FEATURES:
        raise keys.damaged(f"the MLP has {size:g} features, must be from 1 to {MAX_FEATURES}")
    return -(-int(size) // multiple) * multiple


def _granite(keys: Keys, num_layers: int) -> dict[str, Any]:
    for key, supported in (("mamba_n_groups", 1), ("mamba_proj_bias", False)):
        if keys.get(key) not in (None, supported):
            raise UnsupportedArchitecture(f"`{key}` in `{keys.path}`", supported=(str(supported).lower(),))
    if keys.get("time_step_limit") not in _NO_LIMIT:
        raise UnsupportedArchitecture(f"`time_step_limit` in `{keys.path}`", supported=("0 to infinity",))
    num_heads = keys.integer("mamba_n_heads", 128)
    inner = keys.integer("mamba_expand", 2) * keys.integer("hidden_size")
    recurrent = Recurrent(
        layers=_layers(keys, num_layers) or (True,) * min(max(num_layers, 0), MAX_LAYERS),
        conv_width=keys.integer("mamba_d_conv", 4),
        conv_bias=keys.boolean("mamba_conv_bias", True),
        num_heads=num_heads,
        value_size=inner // max(num_heads, 1),
        num_keys=1,
        key_size=keys.integer("mamba_d_state", 256),
    )
    if recurrent.num_heads * recurrent.value_size != inner:
        raise keys.damaged(f"{inner} features cannot be divided into {num_heads} heads (`mamba_n_heads`) evenly")
    shared = keys.integer("shared_intermediate_size", 1024)
    num_experts = keys.integer("num_local_experts", 0)
    # Models without experts have the expert of all tokens alone, as their MLP.
    experts = {
        "num_experts": num_experts,
        "num_experts_per_token": keys.integer("num_experts_per_tok", 2),
        "expert_size": keys.integer("intermediate_size"),
        "shared_expert_size": shared,
        "has_shared_gate": False,
        "expert_layers": (True,) * len(recurrent.layers),
    }
    return {
        "recurrent": recurrent,
        "intermediate_size": shared,
        "rope_layers": (keys.get("position_embedding_type") == "rope",) * len(recurrent.layers),
        **(experts if num_experts else {}),
    }


def _qwen3_next(keys: Keys, num_layers: int) -> dict[str, Any]:
    if keys.boolean("attention_bias", False):
        raise UnsupportedArchitecture(f"`attention_bias` in `{keys.path}`", supported=("false",))
    layers = _layers(keys, num_layers)
    recurrent = Recurrent(
        layers=_by_interval(keys, num_layers) if layers is None else layers,
        conv_width=keys.integer("linear_conv_kernel_dim", 4),
        num_heads=keys.integer("linear_num_value_heads", 32),
        value_size=keys.integer("linear_value_head_dim", 128),
        num_keys=keys.integer("linear_num_key_heads", 16),
        key_size=keys.integer("linear_key_head_dim", 128),
    )
    return {"recurrent": recurrent, "gated_attention": True}


def _layers(keys: Keys, num_layers: int) -> tuple[bool, ...] | None:
    """Returns which layers are recurrent; None if no key says it."""
    kinds = keys.get("layer_types" if "layer_types" in keys else "layers_block_type")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) < min(max(num_layers, 0), MAX_LAYERS):
        raise keys.wrong("layer_types", f"a list of {num_layers} layers")
    known = (*_RECURRENT, *_ATTENTION)
    if (unknown := next((kind for kind in kinds if kind not in known), None)) is not None:
        raise UnsupportedArchitecture(f"layer type {quoted(str(unknown))} of `{keys.path}`", supported=known)
    return tuple(kind in _RECURRENT for kind in kinds[:num_layers])

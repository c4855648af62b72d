"""Reads what only DeepSeek-V2 and V3 state: sizes of latent attention, and how tokens choose experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_LAYERS, LatentAttention, RopeScaling
from trunkline_server.models.keys import Keys

_V3 = "deepseek_v3"
# The values of GGUF's `expert_gating_func`.
_SOFTMAX, _SIGMOID = 1, 2
# GGUF states the weight of YaRN's magnitude times this factor of its logarithm.
_MAGNITUDE_WEIGHT = 0.1


def latent_from_json(keys: Keys, scaling: RopeScaling) -> dict[str, Any]:
    """Returns the fields of attention. scaling: YaRN's magnitude for all features multiplies scores here."""
    for key in ("attention_bias", "mlp_bias"):
        if keys.boolean(key, False):
            raise UnsupportedArchitecture(f"`{key}` in `{keys.path}`", supported=("false",))
    latent = LatentAttention(
        size=keys.integer("kv_lora_rank", 512),
        # `null` means that queries have no latent.
        query_size=keys.integer("q_lora_rank", 0 if "q_lora_rank" in keys else 1536),
        key_size=keys.integer("qk_nope_head_dim", 128),
        value_size=keys.integer("v_head_dim", 128),
        pairs_neighbours=keys.boolean("rope_interleave", True),
    )
    return _attention_fields(keys, latent, keys.integer("qk_rope_head_dim", 64), scaling)


def latent_from_gguf(values: Keys, scaling: RopeScaling) -> dict[str, Any]:
    """Returns the fields of attention. Older files state the sizes of whole heads in other keys."""
    rotated = values.integer("rope.dimension_count")
    key_size = values.integer("attention.key_length_mla", values.integer("attention.key_length"))
    latent = LatentAttention(
        size=values.integer("attention.kv_lora_rank"),
        query_size=values.integer("attention.q_lora_rank", 0),
        key_size=key_size - rotated,
        value_size=values.integer("attention.value_length_mla", values.integer("attention.value_length")),
    )
    return _attention_fields(values, latent, rotated, scaling)


def _attention_fields(keys: Keys, latent: LatentAttention, rotated: int, scaling: RopeScaling) -> dict[str, Any]:
    key_size = latent.key_size + rotated
    if rotated < 1 or key_size < 1:
        raise keys.damaged(f"a head has {latent.key_size} plain and {rotated} rotated features, must be positive")
    scale = float(key_size) ** -0.5
    if scaling.kind == "yarn" and scaling.mscale_all_dim:
        magnitude = scaling.magnitude(scaling.mscale_all_dim)
        scale *= magnitude * magnitude
    if not 0 < scale < 1e6:
        raise keys.damaged(f"the factor of scores is {scale}, must be positive")
    return {
        "num_kv_heads": 1,
        "head_size": latent.size + rotated,
        "rotated_size": rotated,
        "attention_multiplier": scale,
        "latent": latent,
    }


def experts_from_json(keys: Keys, name: str, num_layers: int) -> dict[str, Any]:
    """Returns the fields of experts. name: the architecture's."""
    is_v3 = name == _V3
    method = keys.text("topk_method", "noaux_tc" if is_v3 else "greedy")
    methods = ("noaux_tc",) if is_v3 else ("greedy", "group_limited_greedy")
    scoring = keys.text("scoring_func", "sigmoid" if is_v3 else "softmax")
    if method not in methods:
        raise UnsupportedArchitecture(f"`topk_method` {quoted(method)} in `{keys.path}`", supported=methods)
    if scoring != ("sigmoid" if is_v3 else "softmax"):
        supported = ("sigmoid",) if is_v3 else ("softmax",)
        raise UnsupportedArchitecture(f"`scoring_func` {quoted(scoring)} in `{keys.path}`", supported=supported)
    has_groups = method != "greedy"
    interval = keys.integer("moe_layer_freq", 1)
    if interval < 1:
        raise keys.damaged(f"key `moe_layer_freq` is {interval}, must be positive")
    first = keys.integer("first_k_dense_replace", 3 if is_v3 else 0)
    size = keys.integer("moe_intermediate_size")
    return {
        "num_experts": keys.integer("n_routed_experts"),
        "num_experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_size": size,
        "shared_expert_size": size * keys.integer("n_shared_experts", 0),
        "has_shared_gate": False,
        "expert_multiplier": keys.number("routed_scaling_factor", 2.5 if is_v3 else 1.0),
        "renormalise_experts": keys.boolean("norm_topk_prob", is_v3),
        "sigmoid_experts": is_v3,
        "has_choice_bias": is_v3,
        "expert_groups": keys.integer("n_group", 8 if is_v3 else 1) if has_groups else 1,
        "used_expert_groups": keys.integer("topk_group", 4 if is_v3 else 1) if has_groups else 1,
        "expert_layers": _expert_layers(num_layers, lambda layer: layer >= first and layer % interval == 0),
    }


def experts_from_gguf(values: Keys, num_layers: int, has_tensor: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the fields of experts."""
    scoring = values.integer("expert_gating_func", _SOFTMAX)
    if scoring not in (_SOFTMAX, _SIGMOID):
        raise UnsupportedArchitecture(
            f"`expert_gating_func` {scoring} in `{values.path}`", supported=("1 (softmax)", "2 (sigmoid)")
        )
    first = values.integer("leading_dense_block_count", 0)
    size = values.integer("expert_feed_forward_length")
    return {
        "num_experts": values.integer("expert_count"),
        "num_experts_per_token": values.integer("expert_used_count"),
        "expert_size": size,
        "shared_expert_size": size * values.integer("expert_shared_count", 0),
        "has_shared_gate": False,
        # Old files state 0 for 1.
        "expert_multiplier": values.number("expert_weights_scale", 1.0) or 1.0,
        "renormalise_experts": values.boolean("expert_weights_norm", False),
        "sigmoid_experts": scoring == _SIGMOID,
        "has_choice_bias": has_tensor(f"blk.{first}.exp_probs_b.bias"),
        "expert_groups": values.integer("expert_group_count", 1),
        "used_expert_groups": values.integer("expert_group_used_count", 1),
        "expert_layers": _expert_layers(num_layers, lambda layer: layer >= first),
    }


def scaling_from_gguf(values: Keys, factor: float, trained: int) -> RopeScaling:
    """Returns YaRN's scaling. Its magnitude multiplies scores, so that rotation itself has none."""
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=trained,
        beta_fast=values.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=values.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=1.0,
        mscale_all_dim=values.number("rope.scaling.yarn_log_multiplier", 0.0) / _MAGNITUDE_WEIGHT,
    )


def _expert_layers(num_layers: int, has_experts: Callable[[int], bool]) -> tuple[bool, ...]:
    return tuple(has_experts(layer) for layer in range(min(max(num_layers, 0), MAX_LAYERS)))

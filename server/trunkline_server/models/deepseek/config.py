"""Reads what only DeepSeek-V2 and V3 state: sizes of latent attention, and how tokens choose experts."""

from __future__ import annotations

from dataclasses import replace

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import LatentAttention, RopeScaling, layer_range
from trunkline_server.models.deepseek.forward import forward
from trunkline_server.models.deepseek.places import DEEPSEEK
from trunkline_server.models.expert_keys import experts_from_gguf
from trunkline_server.models.keys import Keys

# GGUF states the weight of YaRN's magnitude times this factor of its logarithm.
_MAGNITUDE_WEIGHT = 0.1


def _latent_from_json(keys: Keys, scaling: RopeScaling) -> Fields:
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


def _latent_from_gguf(values: Keys, scaling: RopeScaling) -> Fields:
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


def _attention_fields(keys: Keys, latent: LatentAttention, rotated: int, scaling: RopeScaling) -> Fields:
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
        "positions.rotated_size": rotated,
        "attention.multiplier": scale,
        "attention.latent": latent,
    }


def _experts_from_json(keys: Keys, num_layers: int, *, is_v3: bool) -> Fields:
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
        "experts.num_experts": keys.integer("n_routed_experts"),
        "experts.num_used": keys.integer("num_experts_per_tok"),
        "experts.size": size,
        "experts.shared_size": size * keys.integer("n_shared_experts", 0),
        "experts.has_shared_gate": False,
        "experts.multiplier": keys.number("routed_scaling_factor", 2.5 if is_v3 else 1.0),
        "experts.renormalise": keys.boolean("norm_topk_prob", is_v3),
        "experts.sigmoid": is_v3,
        "experts.has_choice_bias": is_v3,
        "experts.num_groups": keys.integer("n_group", 8 if is_v3 else 1) if has_groups else 1,
        "experts.num_used_groups": keys.integer("topk_group", 4 if is_v3 else 1) if has_groups else 1,
        "experts.layers": tuple(layer >= first and layer % interval == 0 for layer in layer_range(num_layers)),
    }


def _scaling_from_gguf(values: Keys, factor: float, trained: int) -> RopeScaling:
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


def _v2_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    return _latent_from_json(keys, scaling) | _experts_from_json(keys, num_layers, is_v3=False)


def _v3_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    return _latent_from_json(keys, scaling) | _experts_from_json(keys, num_layers, is_v3=True)


def _from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    experts = experts_from_gguf(values, num_layers, num_rows) if values.integer("expert_count", 0) else {}
    return _latent_from_gguf(values, scaling) | experts


_DEEPSEEK = Architecture(
    models="DeepSeek-V2, V2-Lite, V2.5",
    forward=forward,
    json=JsonKeys(fields=_v2_from_json),
    gguf=GgufKeys(name="deepseek2", renormalises=False, yarn=_scaling_from_gguf, fields=_from_gguf),
    places=DEEPSEEK,
)
ARCHITECTURES = {
    "deepseek_v2": _DEEPSEEK,
    # GGUF states the differences, so files are read as V2.
    "deepseek_v3": replace(_DEEPSEEK, models="DeepSeek-V3, R1", json=JsonKeys(fields=_v3_from_json)),
}

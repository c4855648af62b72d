from __future__ import annotations

from dataclasses import replace

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import MAX_FEATURES, Recurrent, RopeScaling, layer_range
from trunkline_server.models.expert_keys import experts_from_gguf
from trunkline_server.models.keys import Keys
from trunkline_server.models.lfm.forward import forward
from trunkline_server.models.lfm.places import LFM2, LFM2_MOE
from trunkline_server.models.lfm.shapes import mixer_shapes
from trunkline_server.models.recurrent_keys import layers_from_gguf, layers_from_json


def _dense_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    return _convolutions(keys, num_layers) | {"mlp.size": _intermediate_size(keys)}


def _experts_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    first = keys.integer("num_dense_layers", 2)
    return _convolutions(keys, num_layers) | {
        "experts.num_experts": keys.integer("num_experts"),
        "experts.num_used": keys.integer("num_experts_per_tok"),
        "experts.size": keys.integer("moe_intermediate_size"),
        "experts.has_shared_gate": False,
        "experts.multiplier": keys.number("routed_scaling_factor", 1.0),
        "experts.renormalise": keys.boolean("norm_topk_prob", True),
        "experts.sigmoid": True,
        "experts.has_choice_bias": keys.boolean("use_expert_bias", True),
        "experts.layers": tuple(layer >= first for layer in layer_range(num_layers)),
    }


def _convolutions(keys: Keys, num_layers: int) -> Fields:
    """Returns which layers convolve, and over how many positions."""
    if keys.boolean("conv_bias", False):
        raise UnsupportedArchitecture(f"`conv_bias` in `{keys.path}`", supported=("false",))
    layers = layers_from_json(keys, num_layers)
    if layers is None:
        attention = keys.get("full_attn_idxs")
        if not isinstance(attention, list) or not all(type(layer) is int for layer in attention):
            raise keys.wrong("full_attn_idxs", "a list of layers")
        layers = tuple(layer not in attention for layer in layer_range(num_layers))
    return {"recurrent": Recurrent(layers=layers, conv_width=keys.integer("conv_L_cache", 3))}


def _intermediate_size(keys: Keys) -> int:
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


def _from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    layers, num_kv_heads = layers_from_gguf(values, num_layers)
    recurrent = Recurrent(layers=layers, conv_width=values.integer("shortconv.l_cache"))
    return {"num_kv_heads": num_kv_heads, "recurrent": recurrent}


def _moe_from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    fields = _from_gguf(values, num_layers, scaling, num_rows)
    if values.integer("expert_count", 0) == 0:
        return fields
    return fields | experts_from_gguf(values, num_layers, num_rows) | {"experts.renormalise": True}


_LFM2 = Architecture(
    models="LFM2",
    forward=forward,
    json=JsonKeys(
        spelling={"rms_norm_eps": "norm_eps"}, attention_bias=False, attention_output_bias=False, norm_eps=1e-5,
        rope_theta=1_000_000.0, tied=True, fields=_dense_from_json,
    ),
    gguf=GgufKeys(name="lfm2", fields=_from_gguf),
    places=LFM2,
    mixer_shapes=mixer_shapes,
    query_key_norm=True,
)  # fmt: skip
ARCHITECTURES = {
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        models="LFM2 with experts",
        json=replace(_LFM2.json, fields=_experts_from_json),
        gguf=GgufKeys(name="lfm2moe", renormalises=True, fields=_moe_from_gguf),
        places=LFM2_MOE,
    ),
}

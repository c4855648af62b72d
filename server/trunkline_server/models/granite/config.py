from __future__ import annotations

import math
from dataclasses import replace

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import Recurrent, RopeScaling, layer_range
from trunkline_server.models.granite.forward import forward
from trunkline_server.models.granite.places import GRANITE_HYBRID, GRANITE_MOE
from trunkline_server.models.granite.shapes import mixer_shapes
from trunkline_server.models.keys import Keys
from trunkline_server.models.places import Places
from trunkline_server.models.recurrent_keys import layers_from_gguf, layers_from_json, state_from_gguf

# transformers writes infinity in two ways.
_NO_LIMIT = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def _factors(keys: Keys, embedding: str, residual: str, attention: str, logits: str, divisor: float) -> Fields:
    """Returns the fields of factors by the names of their keys. divisor: of logits."""
    if divisor <= 0:
        raise keys.wrong(logits, "a positive number")
    return {
        "embedding_multiplier": keys.number(embedding, 1.0),
        "residual_multiplier": keys.number(residual, 1.0),
        "attention.multiplier": keys.number(attention, 1.0),
        "logit_multiplier": 1.0 / divisor,
    }


def _from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    names = "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"
    return _factors(keys, *names, keys.number("logits_scaling", 1.0))


def _hybrid_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    for key, supported in (("mamba_n_groups", 1), ("mamba_proj_bias", False)):
        if keys.get(key) not in (None, supported):
            raise UnsupportedArchitecture(f"`{key}` in `{keys.path}`", supported=(str(supported).lower(),))
    if keys.get("time_step_limit") not in _NO_LIMIT:
        raise UnsupportedArchitecture(f"`time_step_limit` in `{keys.path}`", supported=("0 to infinity",))
    num_heads = keys.integer("mamba_n_heads", 128)
    inner = keys.integer("mamba_expand", 2) * keys.integer("hidden_size")
    recurrent = Recurrent(
        layers=layers_from_json(keys, num_layers) or (True,) * len(layer_range(num_layers)),
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
        "experts.num_experts": num_experts,
        "experts.num_used": keys.integer("num_experts_per_tok", 2),
        "experts.size": keys.integer("intermediate_size"),
        "experts.shared_size": shared,
        "experts.has_shared_gate": False,
        "experts.layers": (True,) * len(recurrent.layers),
    }
    return {
        "recurrent": recurrent,
        "mlp.size": shared,
        "positions.rotated_layers": (keys.get("position_embedding_type") == "rope",) * len(recurrent.layers),
        **_from_json(keys, num_layers, scaling),
        **(experts if num_experts else {}),
    }


def _from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    names = "embedding_scale", "residual_scale", "attention.scale", "logit_scale"
    return _factors(values, *names, values.number("logit_scale"))


def _hybrid_from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    layers, num_kv_heads = layers_from_gguf(values, num_layers)
    if (groups := values.integer("ssm.group_count", 1)) != 1:
        raise UnsupportedArchitecture(f"`ssm.group_count` {groups} in `{values.path}`", supported=("1",))
    has_bias = True in layers and num_rows(f"blk.{layers.index(True)}.ssm_conv1d.bias") is not None
    shared = values.integer("expert_shared_feed_forward_length", values.integer("feed_forward_length"))
    rotates = values.boolean("rope.scaling.finetuned", False)
    experts = {"experts.shared_size": shared, "experts.has_shared_gate": False}
    return {
        "num_kv_heads": num_kv_heads,
        "recurrent": state_from_gguf(values, layers, num_keys=1, conv_bias=has_bias),
        "mlp.size": shared,
        "positions.rotated_layers": (rotates,) * num_layers,
        **_from_gguf(values, num_layers, scaling, num_rows),
        **(experts if values.integer("expert_count", 0) else {}),
    }


_GRANITE = Architecture(
    models="Granite 3",
    json=JsonKeys(has_mlp_bias=True, fields=_from_json),
    gguf=GgufKeys(name="granite", fields=_from_gguf),
    places=Places(pairs_neighbours="in GGUF"),
)
ARCHITECTURES = {
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE,
        models="Granite 3 with experts",
        json=JsonKeys(expert_size_key="intermediate_size", renormalises=True, fields=_from_json),
        gguf=GgufKeys(name="granitemoe", renormalises=True, fields=_from_gguf),
        places=GRANITE_MOE,
    ),
    "granitemoehybrid": replace(
        _GRANITE,
        models="Granite 4",
        forward=forward,
        json=JsonKeys(fields=_hybrid_from_json),
        gguf=GgufKeys(name="granitehybrid", renormalises=True, fields=_hybrid_from_gguf),
        places=GRANITE_HYBRID,
        mixer_shapes=mixer_shapes,
    ),
}

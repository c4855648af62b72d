from __future__ import annotations

from dataclasses import replace

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import Recurrent, RopeScaling
from trunkline_server.models.keys import Keys
from trunkline_server.models.qwen.forward import forward
from trunkline_server.models.qwen.places import QWEN3_NEXT
from trunkline_server.models.qwen.shapes import mixer_shapes
from trunkline_server.models.recurrent_keys import layers_by_interval, layers_from_json, state_from_gguf


def _next_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    if keys.boolean("attention_bias", False):
        raise UnsupportedArchitecture(f"`attention_bias` in `{keys.path}`", supported=("false",))
    layers = layers_from_json(keys, num_layers)
    recurrent = Recurrent(
        layers=layers_by_interval(keys, num_layers) if layers is None else layers,
        conv_width=keys.integer("linear_conv_kernel_dim", 4),
        num_heads=keys.integer("linear_num_value_heads", 32),
        value_size=keys.integer("linear_value_head_dim", 128),
        num_keys=keys.integer("linear_num_key_heads", 16),
        key_size=keys.integer("linear_key_head_dim", 128),
    )
    return {"recurrent": recurrent, "attention.is_gated": True}


def _next_from_gguf(values: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    marks = values.get("attention.recurrent_layers")
    if marks is None:
        layers = layers_by_interval(values, num_layers)
    elif isinstance(marks, list) and len(marks) >= num_layers and all(type(mark) is bool for mark in marks):
        layers = tuple(marks[:num_layers])
    else:
        raise values.wrong("attention.recurrent_layers", f"{num_layers} booleans")
    num_keys = values.integer("ssm.group_count")
    recurrent = state_from_gguf(values, layers, num_keys=num_keys, conv_bias=False)
    return {"recurrent": recurrent if any(layers) else None, "attention.is_gated": True}


_QWEN2 = JsonKeys(attention_bias=True, attention_output_bias=False, window=4096)
_EXPERTS = JsonKeys(expert_size_key="moe_intermediate_size", chooses_layers=True)
ARCHITECTURES = {
    "qwen2": Architecture(
        models="Qwen1.5, Qwen2, Qwen2.5",
        json=replace(_QWEN2, has_windows=True, max_window_layers=28),
        gguf=GgufKeys(name="qwen2"),
    ),
    "qwen2_moe": Architecture(
        models="Qwen1.5-MoE, Qwen2-MoE",
        json=replace(_QWEN2, expert_size_key="moe_intermediate_size", chooses_layers=True),
        gguf=GgufKeys(name="qwen2moe", renormalises=False),
        has_shared_expert=True,
    ),
    "qwen3": Architecture(
        models="Qwen3",
        json=JsonKeys(head_size=128, has_windows=True, window=4096, max_window_layers=28),
        gguf=GgufKeys(name="qwen3"),
        query_key_norm=True,
    ),
    "qwen3_moe": Architecture(
        models="Qwen3-MoE",
        json=replace(_EXPERTS, has_windows=True, window=4096, max_window_layers=0),
        gguf=GgufKeys(name="qwen3moe", renormalises=True),
        query_key_norm=True,
    ),
    "qwen3_next": Architecture(
        models="Qwen3-Next",
        forward=forward,
        json=replace(_EXPERTS, head_size=256, rotated=0.25, fields=_next_from_json),
        gguf=GgufKeys(name="qwen3next", renormalises=True, fields=_next_from_gguf),
        places=QWEN3_NEXT,
        mixer_shapes=mixer_shapes,
        query_key_norm=True,
        has_shared_expert=True,
    ),
}

"""The names of GLM-4's weights."""

from __future__ import annotations

from trunkline_server.models.places import Places, gguf_joined_gate_and_up, joined_gate_and_up

GLM = Places(part=joined_gate_and_up, pairs_neighbours="everywhere")
GLM4 = Places(
    part=joined_gate_and_up,
    gguf_part=gguf_joined_gate_and_up,
    pairs_neighbours="everywhere",
    modules={
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    },
)

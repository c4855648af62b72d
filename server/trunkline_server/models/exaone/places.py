"""The names of EXAONE 3's weights in safetensors."""

from __future__ import annotations

from trunkline_server.models.places import Places

EXAONE = Places(
    layers="transformer.h",
    whole={"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"},
    modules={
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.q_proj": "attn.attention.q_proj",
        "self_attn.k_proj": "attn.attention.k_proj",
        "self_attn.v_proj": "attn.attention.v_proj",
        "self_attn.o_proj": "attn.attention.out_proj",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
    },
)

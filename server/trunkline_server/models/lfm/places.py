"""The names of LFM2's weights."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import EXPERT, Place, Places

_PROJECTIONS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if module == "mixer.conv":
        return Place(f"{layer}.conv.conv.{kind}", flattens=kind == "weight")
    if module.startswith("mixer."):
        return Place(f"{layer}.conv.{module.removeprefix('mixer.')}.{kind}")
    if module == "mlp.gate.choice":
        return Place(f"{layer}.feed_forward.expert_bias")
    if (expert := EXPERT.fullmatch(module)) is None:
        return None
    return Place(f"{layer}.feed_forward.experts.{expert[1]}.{_PROJECTIONS[expert[2]]}.{kind}")


def _gguf_part(layer: str, module: str, kind: str, config: ModelConfig, tensors: Container[str]) -> Place | None:
    if not module.startswith("mixer."):
        return None
    part = module.removeprefix("mixer.")
    return Place(f"{layer}.shortconv.{part}.{kind}", flattens=part == "conv")


LFM2 = Places(
    whole={"model.norm": "model.embedding_norm"},
    modules={
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    part=_part,
    # llama.cpp's converter took the norm behind the last layer for one of embeddings.
    gguf_whole={"model.norm": "token_embd_norm"},
    gguf_part=_gguf_part,
)
LFM2_MOE = replace(LFM2, modules={**LFM2.modules, "mlp.gate": "feed_forward.gate"})

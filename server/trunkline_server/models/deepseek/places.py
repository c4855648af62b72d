"""The names of the weights of DeepSeek-V2 and V3."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import HEAD_PART, Place, Places

# Safetensors' names for the tensors of `_latent`.
_SAFETENSORS = {
    "attn_q": "q_proj",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_b": "kv_b_proj",
}


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if module == "mlp.gate.choice":
        return Place(f"{layer}.mlp.gate.e_score_correction_bias")
    if (place := _latent(module, config)) is None:
        return None
    return replace(place, tensor=f"{layer}.self_attn.{_SAFETENSORS[place.tensor]}.{kind}")


def _gguf_part(layer: str, module: str, kind: str, config: ModelConfig, tensors: Container[str]) -> Place | None:
    if (place := _latent(module, config)) is None:
        return None
    head = HEAD_PART.fullmatch(module)
    if head and (divided := f"{layer}.attn_{head[1]}_b.{kind}") in tensors:
        return Place(divided, int(head[2]))
    return replace(place, tensor=f"{layer}.{place.tensor}.{kind}")


def _latent(module: str, config: ModelConfig) -> Place | None:
    """Returns the place of a part of latent attention's projections, in the tensor with GGUF's name.

    Rows of queries are those of one head after the other, plain before rotated ones. Below the latent of a token are
    its rotated rows. Each head has rows that make keys of the latent, then rows that make values of it.
    """
    latent, rotated = config.attention.latent, config.rotary_size
    assert latent is not None
    if module in ("self_attn.q_nope", "self_attn.q_rope"):
        size = latent.key_size + rotated
        begin, end = (0, latent.key_size) if module == "self_attn.q_nope" else (latent.key_size, size)
        rows = tuple((head * size + begin, head * size + end) for head in range(config.num_heads))
        return Place("attn_q_b" if latent.query_size else "attn_q", rows=rows)
    if module in ("self_attn.kv_a", "self_attn.k_rope"):
        rows = ((0, latent.size),) if module == "self_attn.kv_a" else ((latent.size, latent.size + rotated),)
        return Place("attn_kv_a_mqa", rows=rows)
    if (part := HEAD_PART.fullmatch(module)) is None:
        return None
    begin = int(part[2]) * (latent.key_size + latent.value_size)
    middle = begin + latent.key_size
    if part[1] == "k":
        return Place("attn_kv_b", rows=((begin, middle),), transposes_rows=True)
    return Place("attn_kv_b", rows=((middle, middle + latent.value_size),))


DEEPSEEK = Places(
    modules={f"mlp.shared_expert.{part}_proj": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    part=_part,
    gguf_part=_gguf_part,
)

"""The places of weights in checkpoints, and how what is stored there differs from what the model needs.

Weights have the names of Llama's safetensors. Other architectures and GGUF have other names for them, join some
(queries, keys and values, or gate and up), or stack the matrices of all experts.

Rotary embedding pairs the two halves of a head here and in most safetensors ("NeoX"). Other files pair neighbours, so
that element i of the first half and element i of the second are stored side by side, head by head:

    halves      a0 a1 a2 a3 | b0 b1 b2 b3
    neighbours  a0 b0 a1 b1 a2 b2 a3 b3

Tensors of queries and keys then have `Tensor.interleaved_heads` set, and their readers undo this: `dequantize`, and the
kernels when they pack. The order of elements makes no difference to scores, as it is the same in queries and keys.

Some norms multiply by 1 + w. Their safetensors hold w, their GGUF files 1 + w. A checkpoint returns 1 + w for both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import EXPERT, HEAD_PART, QUERY_KEY_VALUE, Place, joined_rows
from trunkline_server.models.registry import ARCHITECTURES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_IN_LAYER = re.compile(r"(?:model\.layers|encoder\.layer|layers)\.\d+\.")


def safetensors_places(names: Iterable[str], config: ModelConfig, tensors: Collection[str]) -> dict[str, Place]:
    """Returns the places of weights in safetensors. tensors: the names in the files."""
    if (encoder := ARCHITECTURES[config.architecture].places.encoder) is None:
        return {name: safetensors_place(name, config, tensors) for name in names}
    dense = {name: place for name in names if (place := _dense_place(name, config)) is not None}
    return encoder((name for name in names if name not in dense), tensors, config) | dense


def safetensors_place(name: str, config: ModelConfig, tensors: Container[str] = ()) -> Place:
    """Returns the place of a weight in safetensors. tensors: the names in the files."""
    place = _safetensors_place(name, config)
    # Models that were saved without a head lack this prefix.
    bare = place.tensor.removeprefix("model.")
    return replace(place, tensor=bare) if bare in tensors and place.tensor not in tensors else place


def _safetensors_place(name: str, config: ModelConfig) -> Place:
    places = ARCHITECTURES[config.architecture].places
    module, _, kind = name.rpartition(".")
    if (dense := _dense_place(name, config)) is not None:
        return dense
    if name == "score.weight" and config.pooling is not None and config.pooling.answer_rows:
        head = _safetensors_place(
            "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight", config
        )
        return answer_place(head.tensor, config.pooling.answer_rows, config.vocab_size)
    match = _LAYER.fullmatch(module)
    if match is None:
        return Place(f"{places.whole.get(module, module)}.{kind}")
    layer, module = f"{places.layers}.{match[1]}", match[2]
    if (place := places.part(layer, module, kind, config)) is not None:
        return place
    return Place(f"{layer}.{places.modules.get(module, module)}.{kind}")


def _dense_place(name: str, config: ModelConfig) -> Place | None:
    """Returns the place of a weight of `Pooling.dense`; None for others."""
    match = re.fullmatch(r"vector\.(\d+)\.(weight|bias)", name)
    if match is None or config.pooling is None:
        return None
    return Place(f"{config.pooling.dense[int(match[1])].folder}/linear.{match[2]}")


def answer_place(tensor: str, rows: tuple[int, ...], num_rows: int) -> Place:
    """Returns the place of the weight whose product is the logit of one row, minus that of another if there is one."""
    runs = tuple((row, row + 1) for row in rows)
    return Place(tensor, rows=runs, subtracts_rows=len(rows) == 2, num_rows=num_rows)


def gguf_place(name: str, config: ModelConfig, tensors: Container[str]) -> Place:
    """Returns the place of a weight in GGUF. tensors: the names in the file."""
    places = ARCHITECTURES[config.architecture].places
    if places.gguf_encoder is not None:
        return places.gguf_encoder(name)
    if name == "score.weight" and config.pooling is not None and config.pooling.answer_rows:
        return answer_place("cls.output.weight", config.pooling.answer_rows, len(config.pooling.answer_rows))
    module, _, kind = name.rpartition(".")
    match = _LAYER.fullmatch(module)
    if match is None:
        return Place(f"{(_GGUF_WHOLE | dict(places.gguf_whole))[module]}.{kind}")
    layer, module = f"blk.{match[1]}", match[2]
    if expert := EXPERT.fullmatch(module):
        return Place(f"{layer}.{_GGUF_EXPERTS[expert[2]]}.{kind}", int(expert[1]))
    if module in QUERY_KEY_VALUE and (joined := f"{layer}.attn_qkv.{kind}") in tensors:
        return Place(joined, rows=joined_rows(config, module))
    if (place := places.gguf_part(layer, module, kind, config, tensors)) is not None:
        return place
    names = _GGUF_MODULES | (_GGUF_POST_NORMS if config.norms.layer.after_mlp is not None else {})
    return Place(f"{layer}.{(names | dict(places.gguf_modules))[module]}.{kind}")


def interleaved_heads(name: str, config: ModelConfig, *, is_gguf: bool) -> tuple[int, int] | None:
    """Returns `Tensor.interleaved_heads` of a weight."""
    if config.attention.latent is not None:
        is_rotated = ".self_attn.q_rope." in name or ".self_attn.k_rope." in name
        return (
            (config.rotary_size, config.rotary_size)
            if config.attention.latent.pairs_neighbours and is_rotated
            else None
        )
    where = ARCHITECTURES[config.architecture].places.pairs_neighbours
    pairs_neighbours = where == "everywhere" or (is_gguf and where == "in GGUF")
    is_rotated = ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
    return (config.head_size, config.rotary_size) if pairs_neighbours and is_rotated else None


def rows_in_order(rows: NDArray[np.int64], head_size: int, rotary_size: int) -> NDArray[np.int64]:
    """Returns stored rows of whole heads in the model's order; see `Tensor.interleaved_heads`."""
    heads = rows.reshape(-1, head_size).copy()
    pairs = heads[:, :rotary_size].reshape(len(heads), rotary_size // 2, 2)
    heads[:, :rotary_size] = pairs.swapaxes(1, 2).reshape(len(heads), -1)
    return heads.reshape(-1)


def has_offset(name: str, config: ModelConfig) -> bool:
    """Returns True if safetensors hold the weight minus 1."""
    has_offset = ARCHITECTURES[config.architecture].places.has_offset_norms
    return has_offset and name.endswith("norm.weight") and ".mixer." not in name


def expert_stack(name: str, num_experts: int) -> list[str] | None:
    """Returns the weights of all experts of a layer that are multiplied with the same inputs as this one's.

    Gate and up of an expert follow each other. None if the weight is not that of an expert.
    """
    match = re.fullmatch(rf"(.+\.){EXPERT.pattern}\.weight", name)
    if match is None:
        return None
    projections = ("down_proj",) if match[3] == "down_proj" else ("gate_proj", "up_proj")
    return [f"{match[1]}mlp.experts.{expert}.{part}.weight" for expert in range(num_experts) for part in projections]


def is_expert(name: str) -> bool:
    """Returns True if a weight is a matrix of an expert."""
    return re.fullmatch(rf".+\.{EXPERT.pattern}\.weight", name) is not None


def is_head(name: str) -> bool:
    """Returns True if a weight is a matrix of a single head."""
    return re.fullmatch(rf".+\.{HEAD_PART.pattern}\.weight", name) is not None


def is_in_layer(name: str) -> bool:
    """Returns True if a weight is part of a layer, and not an embedding, a head or a classifier."""
    return _IN_LAYER.match(name) is not None


def takes_adapter(name: str, shape: tuple[int, ...]) -> bool:
    """Returns True if adapters may change a weight."""
    return len(shape) == 2 and is_in_layer(name) and not is_expert(name) and not is_head(name)


def head_stack(name: str, num_heads: int) -> list[str] | None:
    """Returns the weights of all heads that one product multiplies; None if the weight is not that of a head."""
    match = re.fullmatch(rf"(.+\.){HEAD_PART.pattern}\.weight", name)
    if match is None:
        return None
    return [f"{match[1]}self_attn.{match[2]}_up.{head}.weight" for head in range(num_heads)]


_GGUF_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.choice": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
# These replace the names above where the outputs of attention and MLP are normalised.
_GGUF_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}

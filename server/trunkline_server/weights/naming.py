"""Maps GGUF tensor names to those of safetensors, and describes the changes that the conversion to GGUF makes.

llama.cpp rotates neighbouring elements ("NORM"), transformers the two halves of a head ("NeoX"). For some architectures
the conversion to GGUF therefore reorders the rows of the query and key projections, head by head:

    safetensors   a0 a1 a2 a3 | b0 b1 b2 b3    element i of the first half pairs with element i of the second
    GGUF          a0 b0 a1 b1 a2 b2 a3 b3      pairs are neighbours

Such a tensor has `Tensor.interleaved_head` set, and its readers undo the change: `dequantize`, and the kernels when
they pack it.

Gemma's norms multiply by 1 + w. Its safetensors hold w, its GGUF files 1 + w. A checkpoint returns 1 + w for both.
"""

from __future__ import annotations

import re

# Architectures whose conversion reorders rows (`LlamaModel.permute` in llama.cpp's converter).
PERMUTED_ARCHITECTURES = frozenset({"llama", "smollm3"})
# Architectures whose safetensors hold norm weights minus 1.
OFFSET_NORM_ARCHITECTURES = frozenset({"gemma2", "gemma3_text"})

_WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Gemma has two more norms; one of them has the name that other models give to the norm before the MLP.
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
_WHOLE_MODEL_NAME = re.compile(r"([a-z_]+)\.(weight|bias)")


def safetensors_name(gguf_name: str, architecture: str = "llama") -> str | None:
    """Returns the name in the model's safetensors, None for a tensor that only GGUF has (`rope_freqs.weight`)."""
    if match := _LAYER_NAME.fullmatch(gguf_name):
        layer, module, kind = match.groups()
        names = _GEMMA_LAYER if architecture in OFFSET_NORM_ARCHITECTURES else _LAYER
        return f"model.layers.{layer}.{names[module]}.{kind}" if module in names else None
    if match := _WHOLE_MODEL_NAME.fullmatch(gguf_name):
        module, kind = match.groups()
        return f"{_WHOLE_MODEL[module]}.{kind}" if module in _WHOLE_MODEL else None
    return None


def is_permuted(name: str) -> bool:
    """Returns True if `PERMUTED_ARCHITECTURES` reorder the rows of the tensor with this safetensors name."""
    return name.startswith("model.layers.") and (".self_attn.q_proj." in name or ".self_attn.k_proj." in name)


def is_norm(name: str) -> bool:
    """Returns True if the tensor with this safetensors name is the weight of a norm."""
    return name.endswith("norm.weight")

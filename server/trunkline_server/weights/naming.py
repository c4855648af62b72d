"""Maps GGUF tensor names to those of safetensors, and describes the changes that the conversion to GGUF makes.

llama.cpp rotates neighbouring elements ("NORM"), transformers the two halves of a head ("NeoX"). For some architectures
the conversion to GGUF therefore reorders the rows of the query and key projections, head by head:

    safetensors   a0 a1 a2 a3 | b0 b1 b2 b3    element i of the first half pairs with element i of the second
    GGUF          a0 b0 a1 b1 a2 b2 a3 b3      pairs are neighbours

Such a tensor has `Tensor.interleaved_head` set, and its readers undo the change: `dequantize`, and the kernels when
they pack it.

Gemma's norms multiply by 1 + w. Its safetensors hold w, its GGUF files 1 + w. A checkpoint returns 1 + w for both.

GGUF stacks the weights of a layer's experts in one tensor [E, I, N]; a checkpoint returns each expert's part. The names
are those of Qwen's safetensors; Mixtral's have others.
"""

from __future__ import annotations

import re

# Architectures whose conversion reorders rows (`LlamaModel.permute` in llama.cpp's converter).
PERMUTED_ARCHITECTURES = frozenset({"llama", "mixtral", "smollm3"})
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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# Gemma has two more norms; one of them has the name that other models give to the norm before the MLP.
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
_EXPERT_NAME = re.compile(r"(.+\.mlp\.experts)\.\d+\.(gate_proj|up_proj|down_proj)\.weight")
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


def expert_names(gguf_name: str, num_experts: int) -> list[str]:
    """Returns the safetensors names of the experts in a stacked tensor, in order; empty for any other tensor."""
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None or match[2] not in _EXPERTS or match[3] != "weight":
        return []
    layer, projection = match[1], _EXPERTS[match[2]]
    return [f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight" for expert in range(num_experts)]


def expert_stack(name: str, num_experts: int) -> list[str] | None:
    """Returns the weights of all experts of a layer that are multiplied with the same inputs as this one's.

    Gate and up of an expert follow each other. None if the weight is not that of an expert.
    """
    match = _EXPERT_NAME.fullmatch(name)
    if match is None:
        return None
    projections = ("down_proj",) if match[2] == "down_proj" else ("gate_proj", "up_proj")
    return [f"{match[1]}.{expert}.{part}.weight" for expert in range(num_experts) for part in projections]


def stored_name(name: str, architecture: str) -> str:
    """Returns the name under which the architecture's safetensors have a weight."""
    if architecture != "mixtral" or ".mlp." not in name:
        return name
    start, _, rest = name.partition(".mlp.")
    parts = rest.split(".")
    return ".".join([start, "block_sparse_moe", *(_MIXTRAL.get(part, part) for part in parts)])


def is_permuted(name: str) -> bool:
    """Returns True if `PERMUTED_ARCHITECTURES` reorder the rows of the tensor with this safetensors name."""
    return name.startswith("model.layers.") and (".self_attn.q_proj." in name or ".self_attn.k_proj." in name)


def is_norm(name: str) -> bool:
    """Returns True if the tensor with this safetensors name is the weight of a norm."""
    return name.endswith("norm.weight")

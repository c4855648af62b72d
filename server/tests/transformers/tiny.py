"""Tiny random models that transformers makes, one for each way of attending that the backend must follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 160
_SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "dtype": "float32", "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# Windows and chunks are shorter than the prompts of the tests, and not multiples of a block.
CASES: dict[str, dict[str, Any]] = {
    # Learned positions; joined projections; no rotation.
    "gpt2": {},
    # Learned positions with an offset; the model asks for the length of the text.
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    # A rotated part of each head, and attention beside the MLP.
    "gpt_neox": {},
    "stablelm": {"num_key_value_heads": 2},
    "persimmon": {},
    # One key and value head.
    "gpt_bigcode": {},
    # Soft caps, and a window in every other layer.
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 21, "attn_logit_softcapping": 5.0},
    # Sinks, a window in every other layer, and experts.
    "gpt_oss": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 21, "num_local_experts": 4},
    # Attention in chunks of positions, layers that do not rotate, and experts.
    "llama4_text": {
        "num_key_value_heads": 2, "head_dim": 16, "attention_chunk_size": 21, "num_local_experts": 4,
        "intermediate_size_mlp": 96, "num_hidden_layers": 4,
    },
    # Latent attention: keys and values of different sizes, made of few numbers; experts.
    "deepseek_v3": {
        "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1,
    },
    # Keys and values change between cache and attention.
    "diffllama": {"num_key_value_heads": 2},
}  # fmt: skip


def make(case: str, **changes: Any) -> PreTrainedModel:
    """Makes a model with logits of a few units, so that their order is no accident of rounding."""
    config = CONFIG_MAPPING[case](**{**_SIZES, **CASES.get(case, {}), **changes})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=2 * parameter.shape[-1] ** -0.5)
        else:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def save(case: str, folder: Path, **changes: Any) -> Path:
    make(case, **changes).save_pretrained(folder)
    return folder

"""Tiny random models of every architecture, made by transformers from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 160

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

# case -> (config class, what differs from `_COMMON`)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama3": ("LlamaConfig", {"rope_parameters": _LLAMA3_ROPE}),
    "llama_linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}},
    ),
    "llama_yarn": ("LlamaConfig", {"rope_parameters": _YARN_ROPE}),
    "llama_yarn_mscale": (
        "LlamaConfig",
        {"rope_parameters": {**_YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}},
    ),
    "llama_biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    # Rows of whole blocks of every format.
    "llama_wide": ("LlamaConfig", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 32}),
    "mistral_wide_window": ("MistralConfig", {"sliding_window": 512}),
    "mistral_window": ("MistralConfig", {"sliding_window": 37}),
    "gemma2": ("Gemma2Config", {"sliding_window": 40, "head_dim": 24, "query_pre_attn_scalar": 24,
                                "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0,
                                "num_hidden_layers": 4}),
    # The first layers have a window and a base of their own.
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 33, "head_dim": 32, "query_pre_attn_scalar": 32,
                                    "num_hidden_layers": 7,
                                    "rope_parameters": {
                                        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                                    }}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    # The later layers have a window, if it is on.
    "qwen2_window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 37, "max_window_layers": 1}),
    "qwen3_window": ("Qwen3Config", {"head_dim": 32, "use_sliding_window": True, "sliding_window": 40,
                                     "max_window_layers": 2}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "smollm2": ("LlamaConfig", {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1,
                                "hidden_size": 48}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "smollm3_marked": (
        "SmolLM3Config",
        {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 0], "layer_types": ["full_attention"] * 3},
    ),
}  # fmt: skip


def make(case: str, seed: int = 0) -> transformers.PreTrainedModel:
    """The model, f32, every parameter random: norms around 1, biases not 0, logits of a few units."""
    class_name, changes = CASES[case]
    config = getattr(transformers, class_name)(**{**_COMMON, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                # Gemma's norms multiply by 1 more than their weight.
                has_offset = config.model_type.startswith("gemma")
                centre = 1.0 if name.endswith("norm.weight") and not has_offset else 0.0
                parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.0 / parameter.shape[1] ** 0.5))
    return model


def save(model: transformers.PreTrainedModel, folder: Path, **how: Any) -> Path:
    """Writes safetensors and `config.json`; returns the folder."""
    model.save_pretrained(folder, **how)
    return folder

"""Rotary embedding settings of current models."""

from __future__ import annotations

from typing import Any

_QWEN_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": _QWEN_YARN,
    "yarn with an attention factor": {**_QWEN_YARN, "attention_factor": 1.25},
    "yarn with mscale": {**_QWEN_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 16, "beta_slow": 2},
    "yarn without truncation": {**_QWEN_YARN, "truncate": False},
}


def llama(rope: dict[str, Any]) -> dict[str, Any]:
    """Returns the `config.json` of a Llama with heads of 128 elements."""
    return {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rope_parameters": dict(rope),
    }

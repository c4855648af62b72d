"""Models of random weights: the shapes of Llama-3.2-1B and Llama-3-8B, and one for the interpreter."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

SPREAD = 0.02


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes as in config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False

    @property
    def layer_weights(self) -> int:
        """Elements of a layer's matrices."""
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        return self.hidden_size * (heads + 3 * self.intermediate_size)

    @property
    def product_weights(self) -> int:
        """Elements that each token of a prompt is multiplied with, the head apart."""
        return self.num_hidden_layers * self.layer_weights

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    def attention_operations(self, num_tokens: int) -> float:
        """Floating point operations of causal attention over a prompt, all layers."""
        width = self.num_attention_heads * self.head_dim
        return 2.0 * num_tokens * num_tokens * width * self.num_hidden_layers


SHAPES = {
    "tiny": Shape(
        vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
    ),
    "llama-1b": Shape(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131_072, tie_word_embeddings=True,
    ),
    "llama-8b": Shape(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072,
    ),
}  # fmt: skip


def write_model(shape: Shape, folder: Path, device: str) -> Path:
    """config.json, a tokenizer of one word a token, and random bf16 weights from seed 0. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        **asdict(shape), "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "torch_dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    vocabulary = {f"t{number}": number for number in range(shape.vocab_size)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1"})
    )
    safetensors.torch.save_file(_weights(shape, device), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(shape: Shape, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.bfloat16)
        return (values * SPREAD).cpu()

    hidden, inner, head = shape.hidden_size, shape.intermediate_size, shape.head_dim
    weights = {"model.embed_tokens.weight": matrix(shape.vocab_size, hidden)}
    for layer in range(shape.num_hidden_layers):
        name = f"model.layers.{layer}"
        for projection, rows, columns in (
            ("self_attn.q_proj", shape.num_attention_heads * head, hidden),
            ("self_attn.k_proj", shape.num_key_value_heads * head, hidden),
            ("self_attn.v_proj", shape.num_key_value_heads * head, hidden),
            ("self_attn.o_proj", hidden, shape.num_attention_heads * head),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            weights[f"{name}.{projection}.weight"] = matrix(rows, columns)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    weights["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = matrix(shape.vocab_size, hidden)
    return weights

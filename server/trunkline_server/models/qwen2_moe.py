"""Qwen1.5 and Qwen2 with experts (arXiv:2407.10671): one more expert, with a gate of its own, serves all tokens."""

from __future__ import annotations

from trunkline_server.models import qwen2
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = ops.add(x, qwen2.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            mixed = ops.add(mixture(ops, config, f"{name}.mlp", normed), shared(ops, f"{name}.mlp", normed))
            x = ops.add(x, mixed)
        else:
            x = ops.add(x, qwen2.mlp(ops, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def shared(ops: Ops[T], name: str, x: T) -> T:
    """The expert of all tokens, scaled by its gate."""
    gate = ops.linear(x, f"{name}.shared_expert_gate.weight")
    return ops.sigmoid_scale(qwen2.mlp(ops, f"{name}.shared_expert", x), gate)

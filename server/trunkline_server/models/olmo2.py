"""OLMo 2 (arXiv:2501.00656) and OLMo 3: norms behind attention and MLP instead of before them.

In OLMo 3, layers with a window have no rope scaling.
"""

from __future__ import annotations

from trunkline_server.models import qwen2
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import local_rope, rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        mixed = attention(ops, config, layer, x)
        x = ops.add(x, ops.rms_norm(mixed, f"{name}.post_attention_layernorm.weight", config.norm_eps))
        inner = qwen2.mlp(ops, f"{name}.mlp", x)
        x = ops.add(x, ops.rms_norm(inner, f"{name}.post_feedforward_layernorm.weight", config.norm_eps))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention, queries and keys normalised over all heads, then rotated."""
    name, window = f"model.layers.{layer}.self_attn", config.window(layer)

    def project(x: T, projection: str) -> T:
        bias = f"{name}.{projection}.bias" if config.attention_bias else None
        return ops.linear(x, f"{name}.{projection}.weight", bias)

    query, key, value = project(x, "q_proj"), project(x, "k_proj"), project(x, "v_proj")
    query = ops.rms_norm(query, f"{name}.q_norm.weight", config.norm_eps)
    key = ops.rms_norm(key, f"{name}.k_norm.weight", config.norm_eps)
    rotary = rope(config) if window is None else local_rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    mixed = ops.paged_attention(layer, query, config.attention_scale, window)
    return project(mixed, "o_proj")

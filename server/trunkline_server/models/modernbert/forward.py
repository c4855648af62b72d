"""ModernBERT (arXiv:2412.13663): an encoder with rotary positions, most of whose layers see a window around each token.

Norms come before attention and MLP, except that the embeddings' norm is that of the first attention. A classifier has a
head of its own behind the pooling.
"""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.decoder import norm, project
from trunkline_server.models.ops import Ops, Scores, T
from trunkline_server.models.rope import layer_rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    x = norm(ops, config, "embeddings.norm", ops.embedding("embeddings.tok_embeddings.weight"))
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        normed = x if layer == 0 else norm(ops, config, f"{name}.attn_norm", x)
        x = ops.add(x, attention(ops, config, layer, normed))
        x = ops.add(x, mlp(ops, config, f"{name}.mlp", norm(ops, config, f"{name}.mlp_norm", x)))
    return norm(ops, config, "final_norm", x)


def classifier(ops: Ops[T], config: ModelConfig, x: T) -> T:
    return norm(ops, config, "head.norm", ops.gelu_erf(ops.linear(x, "head.dense.weight")))


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Attention of all tokens to all tokens, or to those within the layer's window."""
    name, window = f"layers.{layer}.attn", config.window(layer)
    rotary, bias = layer_rope(config, layer), config.attention.bias
    query = ops.rope(project(ops, f"{name}.query", x, bias), rotary, config.head_size)
    key = ops.rope(project(ops, f"{name}.key", x, bias), rotary, config.head_size)
    ops.write_kv(layer, key, project(ops, f"{name}.value", x, bias))
    mixed = ops.paged_attention(layer, query, Scores(config.attention_scale, window))
    return project(ops, f"{name}.Wo", mixed, bias)


def mlp(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """Gated MLP with exact GELU."""
    gate = ops.gelu_erf(project(ops, f"{name}.gate", x, config.mlp.bias))
    inner = ops.mul(gate, project(ops, f"{name}.up", x, config.mlp.bias))
    return project(ops, f"{name}.Wo", inner, config.mlp.bias)

"""ModernBERT (arXiv:2412.13663): an encoder with rotary positions, most of whose layers see a window around each token.

Norms come before attention and MLP, except that the embeddings' norm is that of the first attention. A classifier has a
head of its own behind the pooling.
"""

from __future__ import annotations

from trunkline_server.models import head
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import local_rope, rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the rows [S, N] of the positions that vectors are made of."""
    assert config.pooling is not None, "an encoder makes vectors"
    x = norm(ops, config, "embeddings.norm", ops.embedding("embeddings.tok_embeddings.weight"))
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        normed = x if layer == 0 else norm(ops, config, f"{name}.attn_norm", x)
        x = ops.add(x, attention(ops, config, layer, normed))
        x = ops.add(x, mlp(ops, config, f"{name}.mlp", norm(ops, config, f"{name}.mlp_norm", x)))
    x = norm(ops, config, "final_norm", x)
    if not config.pooling.labels:
        return head.embedding(ops, config, x)
    x, kind = head.taken(ops, config, x)
    x = norm(ops, config, "head.norm", ops.gelu_erf(ops.linear(x, "head.dense.weight")))
    return ops.pooled(ops.linear(x, "score.weight", "score.bias"), kind)


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Attention of all tokens to all tokens, or to those within the layer's window."""
    name, window = f"layers.{layer}.attn", config.window(layer)

    def project(x: T, projection: str) -> T:
        return ops.linear(
            x, f"{name}.{projection}.weight", f"{name}.{projection}.bias" if config.attention_bias else None
        )

    rotary = rope(config) if window is None else local_rope(config)
    query = ops.rope(project(x, "query"), rotary, config.head_size)
    ops.write_kv(layer, ops.rope(project(x, "key"), rotary, config.head_size), project(x, "value"))
    return project(ops.paged_attention(layer, query, config.attention_scale, window), "Wo")


def mlp(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """Gated MLP with exact GELU."""

    def project(x: T, projection: str) -> T:
        return ops.linear(x, f"{name}.{projection}.weight", f"{name}.{projection}.bias" if config.mlp_bias else None)

    return project(ops.mul(ops.gelu_erf(project(x, "gate")), project(x, "up")), "Wo")


def norm(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    return ops.layer_norm(x, f"{name}.weight", f"{name}.bias" if config.norm_bias else None, config.norm_eps)

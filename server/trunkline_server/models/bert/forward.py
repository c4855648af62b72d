"""BERT (arXiv:1810.04805), and RoBERTa and XLM-RoBERTa (arXiv:1907.11692, arXiv:1911.02116): encoders, whose tokens
all see each other. Their vectors are embeddings, or the logits of classes.
"""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, Scores, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    x = ops.embedding("embeddings.word_embeddings.weight")
    x = ops.add(x, ops.position_embedding("embeddings.position_embeddings.weight", config.positions.offset))
    x = ops.add(x, ops.text_embedding("embeddings.token_type_embeddings.weight"))
    x = norm(ops, config, "embeddings.LayerNorm", x)
    for layer in range(config.num_layers):
        name = f"encoder.layer.{layer}"
        mixed = attention(ops, config, layer, x)
        x = norm(ops, config, f"{name}.attention.output.LayerNorm", ops.add(x, mixed))
        inner = ops.gelu_erf(linear(ops, f"{name}.intermediate.dense", x))
        x = norm(ops, config, f"{name}.output.LayerNorm", ops.add(x, linear(ops, f"{name}.output.dense", inner)))
    return x


def classifier(ops: Ops[T], config: ModelConfig, x: T) -> T:
    return ops.tanh(linear(ops, "pooler.dense", x))


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Attention of all tokens to all tokens."""
    name = f"encoder.layer.{layer}.attention"
    query, key, value = (linear(ops, f"{name}.self.{part}", x) for part in ("query", "key", "value"))
    ops.write_kv(layer, key, value)
    return linear(ops, f"{name}.output.dense", ops.paged_attention(layer, query, Scores(config.attention_scale)))


def linear(ops: Ops[T], name: str, x: T) -> T:
    return ops.linear(x, f"{name}.weight", f"{name}.bias")


def norm(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    return ops.layer_norm(x, f"{name}.weight", f"{name}.bias", config.norms.eps)

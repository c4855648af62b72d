"""Names and shapes of ModernBERT's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.shape_parts import Shapes, norm, with_biases


def weight_shapes(config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.mlp.size
    shapes: Shapes = {"embeddings.tok_embeddings.weight": (config.vocab_size, hidden)}
    shapes |= norm("embeddings.norm", config)
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        shapes |= norm(f"{name}.attn_norm", config) if layer else {}
        parts = ("query", "key", "value", "Wo")
        attention: Shapes = {f"{name}.attn.{part}.weight": (hidden, hidden) for part in parts}
        shapes |= with_biases(attention) if config.attention.bias else attention
        shapes |= norm(f"{name}.mlp_norm", config)
        mlp: Shapes = {f"{name}.mlp.{part}.weight": (inner, hidden) for part in ("gate", "up")}
        mlp[f"{name}.mlp.Wo.weight"] = (hidden, inner)
        shapes |= with_biases(mlp) if config.mlp.bias else mlp
    shapes |= norm("final_norm", config)
    if config.pooling is not None and config.pooling.labels:
        shapes |= {"head.dense.weight": (hidden, hidden)} | norm("head.norm", config)
    return shapes

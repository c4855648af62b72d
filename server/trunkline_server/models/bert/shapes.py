"""Names and shapes of BERT's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.shape_parts import Shapes, norm


def weight_shapes(config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.mlp.size
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings + config.positions.offset, hidden),
        "embeddings.token_type_embeddings.weight": (config.num_text_types, hidden),
    }

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    shapes |= norm("embeddings.LayerNorm", config)
    for layer in range(config.num_layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.self.{part}", hidden, hidden)
        linear(f"{name}.attention.output.dense", hidden, hidden)
        shapes |= norm(f"{name}.attention.output.LayerNorm", config)
        linear(f"{name}.intermediate.dense", inner, hidden)
        linear(f"{name}.output.dense", hidden, inner)
        shapes |= norm(f"{name}.output.LayerNorm", config)
    if config.pooling is not None and config.pooling.labels:
        linear("pooler.dense", hidden, hidden)
    return shapes

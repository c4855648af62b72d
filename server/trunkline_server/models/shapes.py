"""Names and shapes of a model's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Maps the names of `forward`'s weights to their shapes, outermost first; `lm_head.weight` even if tied."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    linear("self_attn.q_proj", query, hidden, config.attention_bias)
    linear("self_attn.k_proj", key, hidden, config.attention_bias)
    linear("self_attn.v_proj", key, hidden, config.attention_bias)
    linear("self_attn.o_proj", hidden, query, config.attention_output_bias)
    if config.query_key_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_size,)
        shapes["self_attn.k_norm.weight"] = (config.head_size,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    if config.post_norms:
        shapes["pre_feedforward_layernorm.weight"] = (hidden,)
        shapes["post_feedforward_layernorm.weight"] = (hidden,)
    linear("mlp.gate_proj", inner, hidden, config.mlp_bias)
    linear("mlp.up_proj", inner, hidden, config.mlp_bias)
    linear("mlp.down_proj", hidden, inner, config.mlp_bias)
    return shapes

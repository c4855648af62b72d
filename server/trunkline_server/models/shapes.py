"""Names and shapes of a model's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Maps the names of `forward`'s weights to their shapes, outermost first; `lm_head.weight` even if tied."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config.num_layers):
        own = _attention_shapes(config) | (_expert_shapes if config.has_experts(layer) else _mlp_shapes)(config)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes |= _norm("model.norm", config)
    shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a layer's weights outside its MLP."""
    hidden = config.hidden_size
    query, key = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {}
    for name in config.layer_norms:
        shapes |= _norm(name, config)

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    linear("self_attn.q_proj", query, hidden, config.attention_bias)
    linear("self_attn.k_proj", key, hidden, config.attention_bias)
    linear("self_attn.v_proj", key, hidden, config.attention_bias)
    linear("self_attn.o_proj", hidden, query, config.attention_output_bias)
    if config.attention_sinks:
        shapes["self_attn.sinks.weight"] = (config.num_heads,)
    if config.query_key_norm:
        shapes["self_attn.q_norm.weight"] = (query if config.wide_query_key_norm else config.head_size,)
        shapes["self_attn.k_norm.weight"] = (key if config.wide_query_key_norm else config.head_size,)
    return shapes


def _norm(name: str, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    kinds = ("weight", "bias") if config.norm_bias else ("weight",)
    return {f"{name}.{kind}": (config.hidden_size,) for kind in kinds}


def _mlp_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = _gated_mlp("mlp", config.hidden_size, config.intermediate_size)
    if not config.gated_mlp:
        del shapes["mlp.gate_proj.weight"]
    return _with_biases(shapes) if config.mlp_bias else shapes


def _with_biases(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Adds a bias for each matrix."""
    return shapes | {f"{name.removesuffix('.weight')}.bias": shape[:1] for name, shape in shapes.items()}


def _expert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (config.num_experts, hidden)}
    for expert in range(config.num_experts):
        shapes |= _gated_mlp(f"mlp.experts.{expert}", hidden, config.expert_size)
    if config.expert_bias:
        shapes = _with_biases(shapes)
    if config.shared_expert_size:
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        shapes |= _gated_mlp("mlp.shared_expert", hidden, config.shared_expert_size)
    return shapes


def _gated_mlp(name: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }

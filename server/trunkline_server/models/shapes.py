"""Names and shapes of a model's weights."""

from __future__ import annotations

from trunkline_server.models.architecture import Encoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.registry import ARCHITECTURES
from trunkline_server.models.shape_parts import Shapes, norm, with_biases


def weight_shapes(config: ModelConfig) -> Shapes:
    """Maps the names of `forward`'s weights to their shapes, outermost first; `lm_head.weight` even if tied.

    A classifier has `score.weight` instead.
    """
    encoder = ARCHITECTURES[config.architecture].encoder
    shapes = _decoder_shapes(config) if encoder is None else _encoder_shapes(encoder, config)
    inputs = config.hidden_size
    for index, dense in enumerate(config.pooling.dense if config.pooling is not None else ()):
        shapes[f"vector.{index}.weight"] = (dense.num_outputs, inputs)
        if dense.has_bias:
            shapes[f"vector.{index}.bias"] = (dense.num_outputs,)
        inputs = dense.num_outputs
    return shapes


def _decoder_shapes(config: ModelConfig) -> Shapes:
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    norms: Shapes = {}
    for name in config.norms.layer.names:
        norms |= norm(name, config)
    attention = _attention_shapes if config.attention.latent is None else _latent_shapes
    recurrent = ARCHITECTURES[config.architecture].mixer_shapes
    for layer in range(config.num_layers):
        mixer = recurrent if config.is_recurrent(layer) else attention
        assert mixer is not None, "only families with such layers read their properties"
        own = norms | mixer(config) | (_expert_shapes if config.has_experts(layer) else _mlp_shapes)(config)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes |= norm("model.norm", config)
    if config.has_output_head:
        shapes["lm_head.weight"] = (vocab, hidden)
    elif config.pooling is not None and config.pooling.labels:
        shapes["score.weight"] = (len(config.pooling.labels), hidden)
    return shapes


def _encoder_shapes(encoder: Encoder, config: ModelConfig) -> Shapes:
    shapes = encoder.shapes(config)
    assert config.pooling is not None, "an encoder makes vectors"
    if config.pooling.labels:
        num_labels = len(config.pooling.labels)
        shapes |= {"score.weight": (num_labels, config.hidden_size), "score.bias": (num_labels,)}
    return shapes


def _attention_shapes(config: ModelConfig) -> Shapes:
    """Returns the shapes of a layer's weights outside its norms and its MLP."""
    hidden = config.hidden_size
    query, key = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: Shapes = {}

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    linear("self_attn.q_proj", query, hidden, config.attention.bias)
    linear("self_attn.k_proj", key, hidden, config.attention.bias)
    linear("self_attn.v_proj", key, hidden, config.attention.bias)
    if config.attention.is_gated:
        linear("self_attn.gate_proj", query, hidden, config.attention.bias)
    linear("self_attn.o_proj", hidden, query, config.attention.output_bias)
    if config.attention.has_sinks:
        shapes["self_attn.sinks.weight"] = (config.num_heads,)
    if config.attention.query_key_norm:
        shapes["self_attn.q_norm.weight"] = (query if config.attention.wide_query_key_norm else config.head_size,)
        shapes["self_attn.k_norm.weight"] = (key if config.attention.wide_query_key_norm else config.head_size,)
    return shapes


def _latent_shapes(config: ModelConfig) -> Shapes:
    """Like `_attention_shapes`, for latent attention."""
    latent, hidden, heads = config.attention.latent, config.hidden_size, range(config.num_heads)
    assert latent is not None
    shapes: Shapes = {}
    if latent.query_size:
        shapes["self_attn.q_a_proj.weight"] = (latent.query_size, hidden)
        shapes["self_attn.q_a_layernorm.weight"] = (latent.query_size,)
    inputs = latent.query_size or hidden
    shapes["self_attn.q_nope.weight"] = (config.num_heads * latent.key_size, inputs)
    shapes["self_attn.q_rope.weight"] = (config.num_heads * config.rotary_size, inputs)
    shapes["self_attn.kv_a.weight"] = (latent.size, hidden)
    shapes["self_attn.k_rope.weight"] = (config.rotary_size, hidden)
    shapes["self_attn.kv_a_layernorm.weight"] = (latent.size,)
    shapes |= {f"self_attn.k_up.{head}.weight": (latent.size, latent.key_size) for head in heads}
    shapes |= {f"self_attn.v_up.{head}.weight": (latent.value_size, latent.size) for head in heads}
    shapes["self_attn.o_proj.weight"] = (hidden, config.num_heads * latent.value_size)
    return shapes


def _mlp_shapes(config: ModelConfig) -> Shapes:
    shapes = _gated_mlp("mlp", config.hidden_size, config.mlp.size)
    if not config.mlp.is_gated:
        del shapes["mlp.gate_proj.weight"]
    return with_biases(shapes) if config.mlp.bias else shapes


def _expert_shapes(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    shapes: Shapes = {"mlp.gate.weight": (config.experts.num_experts, hidden)}
    for expert in range(config.experts.num_experts):
        shapes |= _gated_mlp(f"mlp.experts.{expert}", hidden, config.experts.size)
    if config.experts.bias:
        shapes = with_biases(shapes)
    if config.experts.has_choice_bias:
        shapes["mlp.gate.choice.bias"] = (config.experts.num_experts,)
    if config.experts.shared_size:
        if config.experts.has_shared_gate:
            shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        shapes |= _gated_mlp("mlp.shared_expert", hidden, config.experts.shared_size)
    return shapes


def _gated_mlp(name: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }

"""Names and shapes of a model's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Maps the names of `forward`'s weights to their shapes, outermost first; `lm_head.weight` even if tied.

    A classifier has `score.weight` instead.
    """
    shapes = (_encoder_shapes if config.is_encoder else _decoder_shapes)(config)
    inputs = config.hidden_size
    for index, dense in enumerate(config.pooling.dense if config.pooling is not None else ()):
        shapes[f"vector.{index}.weight"] = (dense.num_outputs, inputs)
        if dense.has_bias:
            shapes[f"vector.{index}.bias"] = (dense.num_outputs,)
        inputs = dense.num_outputs
    return shapes


def _decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    norms: dict[str, tuple[int, ...]] = {}
    for name in config.norms.layer.names:
        norms |= _norm(name, config)
    for layer in range(config.num_layers):
        attention = _attention_shapes if config.attention.latent is None else _latent_shapes
        mixer = _mixer_shapes if config.is_recurrent(layer) else attention
        own = norms | mixer(config) | (_expert_shapes if config.has_experts(layer) else _mlp_shapes)(config)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes |= _norm("model.norm", config)
    if config.has_output_head:
        shapes["lm_head.weight"] = (vocab, hidden)
    elif config.pooling is not None and config.pooling.labels:
        shapes["score.weight"] = (len(config.pooling.labels), hidden)
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a layer's weights outside its norms and its MLP."""
    hidden = config.hidden_size
    query, key = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {}

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


def _mixer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Like `_attention_shapes`, for a recurrent layer."""
    recurrent, hidden = config.recurrent, config.hidden_size
    assert recurrent is not None
    channels = recurrent.conv_channels(hidden)
    heads, inner = recurrent.num_heads, recurrent.num_heads * recurrent.value_size
    shapes: dict[str, tuple[int, ...]] = {}
    shapes["mixer.conv.weight"] = (channels * recurrent.conv_width,)
    if recurrent.conv_bias:
        shapes["mixer.conv.bias"] = (channels,)
    if not heads:
        return shapes | {"mixer.in_proj.weight": (3 * hidden, hidden), "mixer.out_proj.weight": (hidden, hidden)}
    shapes |= {"mixer.dt.bias": (heads,), "mixer.rate.weight": (heads,), "mixer.out_proj.weight": (hidden, inner)}
    if config.architecture == "granitemoehybrid":
        projection = {"mixer.in_proj.weight": (inner + channels + heads, hidden)}
        return shapes | projection | {"mixer.skip.weight": (heads,), "mixer.norm.weight": (inner,)}
    return shapes | {
        "mixer.qkv_proj.weight": (channels, hidden),
        "mixer.gate_proj.weight": (inner, hidden),
        "mixer.strength_proj.weight": (heads, hidden),
        "mixer.step_proj.weight": (heads, hidden),
        "mixer.norm.weight": (recurrent.value_size,),
    }


def _latent_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Like `_attention_shapes`, for latent attention."""
    latent, hidden, heads = config.attention.latent, config.hidden_size, range(config.num_heads)
    assert latent is not None
    shapes: dict[str, tuple[int, ...]] = {}
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


def _norm(name: str, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    kinds = ("weight", "bias") if config.norms.bias else ("weight",)
    return {f"{name}.{kind}": (config.hidden_size,) for kind in kinds}


def _mlp_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = _gated_mlp("mlp", config.hidden_size, config.mlp.size)
    if not config.mlp.is_gated:
        del shapes["mlp.gate_proj.weight"]
    return _with_biases(shapes) if config.mlp.bias else shapes


def _with_biases(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Adds a bias for each matrix."""
    return shapes | {f"{name.removesuffix('.weight')}.bias": shape[:1] for name, shape in shapes.items()}


def _expert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (config.experts.num_experts, hidden)}
    for expert in range(config.experts.num_experts):
        shapes |= _gated_mlp(f"mlp.experts.{expert}", hidden, config.experts.size)
    if config.experts.bias:
        shapes = _with_biases(shapes)
    if config.experts.has_choice_bias:
        shapes["mlp.gate.choice.bias"] = (config.experts.num_experts,)
    if config.experts.shared_size:
        if config.experts.has_shared_gate:
            shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        shapes |= _gated_mlp("mlp.shared_expert", hidden, config.experts.shared_size)
    return shapes


def _gated_mlp(name: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }


def _encoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = (_modernbert_shapes if config.architecture == "modernbert" else _bert_shapes)(config)
    assert config.pooling is not None, "an encoder makes vectors"
    if config.pooling.labels:
        num_labels = len(config.pooling.labels)
        shapes |= {"score.weight": (num_labels, config.hidden_size), "score.bias": (num_labels,)}
    return shapes


def _bert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.mlp.size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings + config.positions.offset, hidden),
        "embeddings.token_type_embeddings.weight": (config.num_text_types, hidden),
    }

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    shapes |= _norm("embeddings.LayerNorm", config)
    for layer in range(config.num_layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.self.{part}", hidden, hidden)
        linear(f"{name}.attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{name}.attention.output.LayerNorm", config)
        linear(f"{name}.intermediate.dense", inner, hidden)
        linear(f"{name}.output.dense", hidden, inner)
        shapes |= _norm(f"{name}.output.LayerNorm", config)
    if config.pooling is not None and config.pooling.labels:
        linear("pooler.dense", hidden, hidden)
    return shapes


def _modernbert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.mlp.size
    shapes: dict[str, tuple[int, ...]] = {"embeddings.tok_embeddings.weight": (config.vocab_size, hidden)}
    shapes |= _norm("embeddings.norm", config)
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        shapes |= _norm(f"{name}.attn_norm", config) if layer else {}
        parts = ("query", "key", "value", "Wo")
        attention: dict[str, tuple[int, ...]] = {f"{name}.attn.{part}.weight": (hidden, hidden) for part in parts}
        shapes |= _with_biases(attention) if config.attention.bias else attention
        shapes |= _norm(f"{name}.mlp_norm", config)
        mlp: dict[str, tuple[int, ...]] = {f"{name}.mlp.{part}.weight": (inner, hidden) for part in ("gate", "up")}
        mlp[f"{name}.mlp.Wo.weight"] = (hidden, inner)
        shapes |= _with_biases(mlp) if config.mlp.bias else mlp
    shapes |= _norm("final_norm", config)
    if config.pooling is not None and config.pooling.labels:
        shapes |= {"head.dense.weight": (hidden, hidden)} | _norm("head.norm", config)
    return shapes

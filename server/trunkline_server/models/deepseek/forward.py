"""DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437): latent attention, and experts behind some dense layers.

A token's key is its rotated part, shared by all heads, followed by its latent, which is also its value. Instead of
deriving keys and values of each head from the latents of all earlier tokens, a head moves its query into the space of
latents and its result out of it ("absorption", arXiv:2405.04434, appendix C).
"""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = ops.add(x, attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            x = ops.add(x, experts(ops, config, f"{name}.mlp", normed))
        else:
            x = ops.add(x, decoder.mlp(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Latent attention: all query heads share one key head, whose last elements are the value."""
    name = f"model.layers.{layer}.self_attn"
    assert config.latent is not None
    heads = range(config.num_heads)
    rotary = rope(config)
    source = x
    if config.latent.query_size:
        source = ops.rms_norm(ops.linear(x, f"{name}.q_a_proj.weight"), f"{name}.q_a_layernorm.weight", config.norm_eps)
    plain, rotated = ops.linear(source, f"{name}.q_nope.weight"), ops.linear(source, f"{name}.q_rope.weight")
    absorbed = ops.head_linear(plain, [f"{name}.k_up.{head}.weight" for head in heads])
    query = ops.rope(ops.join_heads(rotated, absorbed, config.num_heads), rotary, config.head_size)
    latent, shared = ops.linear(x, f"{name}.kv_a.weight"), ops.linear(x, f"{name}.k_rope.weight")
    latent = ops.rms_norm(latent, f"{name}.kv_a_layernorm.weight", config.norm_eps)
    ops.write_kv(layer, ops.rope(ops.join_heads(shared, latent, 1), rotary, config.head_size), None)
    mixed = ops.paged_attention(layer, query, config.attention_scale)
    return ops.linear(ops.head_linear(mixed, [f"{name}.v_up.{head}.weight" for head in heads]), f"{name}.o_proj.weight")


def experts(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """The experts that tokens choose and, if the model has one, the expert of all tokens."""
    mixed = mixture(ops, config, name, x)
    if config.expert_multiplier != 1.0:
        mixed = ops.scale(mixed, config.expert_multiplier)
    if not config.shared_expert_size:
        return mixed
    return ops.add(mixed, decoder.mlp(ops, config, f"{name}.shared_expert", x))

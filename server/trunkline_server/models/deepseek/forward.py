"""DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437): latent attention, and experts behind some dense layers.

A token's key is its rotated part, shared by all heads, followed by its latent, which is also its value. Instead of
deriving keys and values of each head from the latents of all earlier tokens, a head moves its query into the space of
latents and its result out of it ("absorption", arXiv:2405.04434, appendix C).
"""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, Scores, T
from trunkline_server.models.rope import rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    return decoder.hidden(ops, config, attention, decoder.feed)


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Latent attention: all query heads share one key head, whose last elements are the value."""
    name = f"model.layers.{layer}.self_attn"
    assert config.attention.latent is not None
    heads = range(config.num_heads)
    rotary = rope(config)
    source = x
    if config.attention.latent.query_size:
        source = ops.rms_norm(
            ops.linear(x, f"{name}.q_a_proj.weight"), f"{name}.q_a_layernorm.weight", config.norms.eps
        )
    plain, rotated = ops.linear(source, f"{name}.q_nope.weight"), ops.linear(source, f"{name}.q_rope.weight")
    absorbed = ops.head_linear(plain, [f"{name}.k_up.{head}.weight" for head in heads])
    query = ops.rope(ops.join_heads(rotated, absorbed, config.num_heads), rotary, config.head_size)
    latent, shared = ops.linear(x, f"{name}.kv_a.weight"), ops.linear(x, f"{name}.k_rope.weight")
    latent = ops.rms_norm(latent, f"{name}.kv_a_layernorm.weight", config.norms.eps)
    ops.write_kv(layer, ops.rope(ops.join_heads(shared, latent, 1), rotary, config.head_size), None)
    mixed = ops.paged_attention(layer, query, Scores(config.attention_scale))
    return ops.linear(ops.head_linear(mixed, [f"{name}.v_up.{head}.weight" for head in heads]), f"{name}.o_proj.weight")

"""The names of InternLM 2's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import QUERY_KEY_VALUE, Place, Places


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    """The query heads of each key/value head precede its key and value."""
    if module not in QUERY_KEY_VALUE:
        return None
    num_queries, size = config.num_heads // config.num_kv_heads, config.head_size
    first = (0, num_queries, num_queries + 1)[QUERY_KEY_VALUE.index(module)]
    count = num_queries if first == 0 else 1
    groups = range(0, config.num_kv_heads * (num_queries + 2), num_queries + 2)
    rows = tuple(((group + first) * size, (group + first + count) * size) for group in groups)
    return Place(f"{layer}.attention.wqkv.{kind}", rows=rows)


INTERNLM2 = Places(
    whole={"model.embed_tokens": "model.tok_embeddings", "lm_head": "output"},
    modules={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    part=_part,
    pairs_neighbours="in GGUF",
)

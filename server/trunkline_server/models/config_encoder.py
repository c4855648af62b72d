"""Reads `ModelConfig` from the `config.json` of an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_LAYERS, ModelConfig
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import Pooling

ENCODERS = ("bert", "camembert", "roberta", "xlm-roberta")


def encoder_config(path: Path, name: str, values: Mapping[str, object]) -> ModelConfig:
    """Reads the config of one of `ENCODERS` from the parsed `config.json` at `path`.

    Raises DamagedFile or UnsupportedArchitecture.
    """
    keys = Keys(path, values)
    for key, known in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if (value := keys.text(key, known)) != known:
            raise UnsupportedArchitecture(f"`{key}` {quoted(value)} of `{path}`", supported=(known,))
    if keys.boolean("is_decoder", False):
        raise UnsupportedArchitecture(f"`is_decoder` in `{path}`", supported=("false",))
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers = keys.integer("num_hidden_layers")
    # RoBERTa counts positions from the one behind its padding token.
    offset = 0 if name == "bert" else keys.integer("pad_token_id", 1) + 1
    config = ModelConfig(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // max(num_heads, 1),
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        max_position_embeddings=keys.integer("max_position_embeddings", 512) - offset,
        rope_theta=10_000.0,
        rope_layers=(False,) * min(max(num_layers, 0), MAX_LAYERS),
        gated_mlp=False,
        norm_bias=True,
        has_output_head=False,
        pooling=Pooling("mean", whole=True),
        position_offset=offset,
        num_text_types=keys.integer("type_vocab_size", 2),
    )
    if (problem := config.problem()) or not 0 <= offset <= config.max_position_embeddings:
        raise keys.damaged(problem or f"key `pad_token_id` is {offset - 1}, expected a small number")
    if not 1 <= config.num_text_types <= 1 << 10:
        raise keys.wrong("type_vocab_size", "a positive number")
    return config

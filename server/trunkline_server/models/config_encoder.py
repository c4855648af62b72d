"""Reads `ModelConfig` from the `config.json` of an encoder, or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import MAX_LAYERS, ModelConfig
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import MAX_LABELS, RANK, Pooling, kind_from_gguf

ENCODERS = ("bert", "camembert", "modernbert", "roberta", "xlm-roberta")


def encoder_config(path: Path, name: str, values: Mapping[str, object]) -> ModelConfig:
    """Reads the config of one of `ENCODERS` from the parsed `config.json` at `path`.

    Raises DamagedFile or UnsupportedArchitecture.
    """
    keys = Keys(path, values)
    if name == "modernbert":
        return _modernbert_config(keys)
    _refuse_others(keys, {"hidden_act": "gelu", "position_embedding_type": "absolute"}, ("is_decoder",))
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers = keys.integer("num_hidden_layers")
    # RoBERTa counts positions from the one behind its padding token.
    offset = 0 if name == "bert" else keys.integer("pad_token_id", 1) + 1
    config = _bert_config(
        name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        max_position_embeddings=keys.integer("max_position_embeddings", 512) - offset,
        pooling=Pooling("mean", whole=True),
        position_offset=offset,
        num_text_types=keys.integer("type_vocab_size", 2),
    )
    if (problem := config.problem()) or not 0 <= offset <= config.max_position_embeddings:
        raise keys.damaged(problem or f"key `pad_token_id` is {offset - 1}, expected a small number")
    if not 1 <= config.num_text_types <= 1 << 10:
        raise keys.wrong("type_vocab_size", "a positive number")
    return config


def encoder_from_gguf(keys: Keys, name: str, vocab_size: int, num_rows: Callable[[str], int | None]) -> ModelConfig:
    """Reads the config of an encoder from GGUF metadata.

    num_rows: returns the rows of the file's tensor with this GGUF name, None if there is none.
    Raises DamagedFile or UnsupportedArchitecture.
    """
    if keys.boolean("attention.causal", False):
        raise UnsupportedArchitecture(f"`attention.causal` in `{keys.path}`", supported=("false",))
    hidden_size, num_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    num_layers = keys.integer("block_count")
    # Positions of RoBERTa's padding are not in the file.
    config = _bert_config(
        name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        norm_eps=keys.number("attention.layer_norm_epsilon", 1e-12),
        max_position_embeddings=keys.integer("context_length"),
        pooling=_gguf_pooling(keys, num_rows("cls.output.weight")),
        num_text_types=num_rows("token_types.weight") or 0,
    )
    if problem := config.problem():
        raise keys.damaged(problem)
    return config


def _gguf_pooling(keys: Keys, num_labels: int | None) -> Pooling:
    if keys.get("pooling_type") != RANK:
        return Pooling(kind_from_gguf(keys.get("pooling_type")) or "mean", whole=True)
    if num_labels is None or num_labels > MAX_LABELS:
        raise keys.damaged(f"`cls.output.weight` has {num_labels or 'no'} rows, expected 1 to {MAX_LABELS} classes")
    return Pooling("first", whole=True, labels=tuple(f"LABEL_{index}" for index in range(num_labels)))


def _bert_config(
    name: str,
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    **fields: Any,
) -> ModelConfig:
    return ModelConfig(
        architecture=name,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // max(num_heads, 1),
        rope_theta=10_000.0,
        rope_layers=(False,) * min(max(num_layers, 0), MAX_LAYERS),
        gated_mlp=False,
        norm_bias=True,
        has_output_head=False,
        **fields,
    )


def _refuse_others(keys: Keys, texts: Mapping[str, str], flags: tuple[str, ...]) -> None:
    """Raises UnsupportedArchitecture unless texts have these values, which are the defaults, and flags are false."""
    for key, known in texts.items():
        if (value := keys.text(key, known)) != known:
            raise UnsupportedArchitecture(f"`{key}` {quoted(value)} of `{keys.path}`", supported=(known,))
    for key in flags:
        if keys.boolean(key, False):
            raise UnsupportedArchitecture(f"`{key}` in `{keys.path}`", supported=("false",))


def _modernbert_config(keys: Keys) -> ModelConfig:
    _refuse_others(keys, {"hidden_activation": "gelu", "classifier_activation": "gelu"}, ("classifier_bias",))
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers, local = keys.integer("num_hidden_layers"), keys.integer("local_attention", 128)
    attention_bias = keys.boolean("attention_bias", False)
    # A token sees half of the window on either side, and itself.
    windows = tuple(local // 2 + 1 if is_local else None for is_local in _local_layers(keys, num_layers))
    config = ModelConfig(
        architecture="modernbert",
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // max(num_heads, 1),
        norm_eps=keys.number("norm_eps", 1e-5),
        max_position_embeddings=keys.integer("max_position_embeddings", 8192),
        rope_theta=_rope_theta(keys, "full_attention", "global_rope_theta", 160_000.0),
        local_rope_theta=_rope_theta(keys, "sliding_attention", "local_rope_theta", 10_000.0),
        rope_layers=(True,) * len(windows),
        windows=windows,
        attention_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=keys.boolean("mlp_bias", False),
        norm_bias=keys.boolean("norm_bias", False),
        has_output_head=False,
        pooling=Pooling("mean", whole=True),
    )
    if problem := config.problem():
        raise keys.damaged(problem)
    return config


def _local_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether it has a window: as `layer_types` says, or all but every so many."""
    types = keys.get("layer_types")
    if types is None:
        interval = keys.integer("global_attn_every_n_layers", 3)
        if interval < 1:
            raise keys.wrong("global_attn_every_n_layers", "a positive number")
        return tuple(layer % interval != 0 for layer in range(min(max(num_layers, 0), MAX_LAYERS)))
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in known for kind in types):
        raise keys.wrong("layer_types", f"a list of {num_layers} times {' or '.join(known)}")
    return tuple(kind == "sliding_attention" for kind in types)


def _rope_theta(keys: Keys, layer_type: str, old_key: str, default: float) -> float:
    """Returns the rotary base of one type of layers. Newer files have an object for each type."""
    types = keys.nested("rope_parameters") or Keys(keys.path, {})
    rope = types.nested(layer_type) or Keys(keys.path, {})
    if keys.get("rope_scaling") is not None or rope.text("rope_type", "default") != "default":
        raise UnsupportedArchitecture(f"rope scaling in `{keys.path}`", supported=("default",))
    return rope.number("rope_theta", keys.number(old_key, default))

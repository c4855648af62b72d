from __future__ import annotations

from typing import Any

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Architecture, Encoder, GgufKeys, NumRows
from trunkline_server.models.bert.forward import classifier, forward
from trunkline_server.models.bert.places import BERT
from trunkline_server.models.bert.shapes import weight_shapes
from trunkline_server.models.config import Mlp, ModelConfig, Norms, Positions, layer_range
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import MAX_LABELS, RANK, Pooling, kind_from_gguf


def _from_json(name: str, keys: Keys) -> ModelConfig:
    keys.refuse_others({"hidden_act": "gelu", "position_embedding_type": "absolute"}, ("is_decoder",))
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


def _from_gguf(name: str, keys: Keys, vocab_size: int, num_rows: NumRows) -> ModelConfig:
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
    intermediate_size: int,
    norm_eps: float,
    position_offset: int = 0,
    **fields: Any,
) -> ModelConfig:
    no_rotation = (False,) * len(layer_range(num_layers))
    return ModelConfig(
        architecture=name,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // max(num_heads, 1),
        norms=Norms(eps=norm_eps, are_layer_norms=True, bias=True),
        mlp=Mlp(size=intermediate_size, is_gated=False, activation="gelu"),
        positions=Positions(theta=10_000.0, rotated_layers=no_rotation, offset=position_offset),
        has_output_head=False,
        **fields,
    )


def _architecture(models: str, gguf: GgufKeys | None = None) -> Architecture:
    readers = Encoder(from_json=_from_json, from_gguf=_from_gguf, shapes=weight_shapes)
    return Architecture(models=models, forward=forward, classifier=classifier, encoder=readers, gguf=gguf, places=BERT)


ARCHITECTURES = {
    "bert": _architecture(
        "BERT, and most of sentence-transformers' models: bge, e5, gte, MiniLM", GgufKeys(name="bert")
    ),
    "camembert": _architecture("CamemBERT"),
    "roberta": _architecture("RoBERTa", GgufKeys(name="bert")),
    "xlm-roberta": _architecture("XLM-RoBERTa: bge-m3, multilingual e5, bge-reranker-v2"),
}

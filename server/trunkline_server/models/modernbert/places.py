"""The names of ModernBERT's weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import Place, Places

_WORDS = "embeddings.tok_embeddings.weight"
_HEADS = {"score": "classifier", "head.dense": "head.dense", "head.norm": "head.norm"}
# Files join these, in this order.
_JOINED = {"query": ("Wqkv", 0), "key": ("Wqkv", 1), "value": ("Wqkv", 2), "gate": ("Wi", 0), "up": ("Wi", 1)}
_JOINED_MODULE = re.compile(r"(layers\.\d+\.(?:attn|mlp))\.(\w+)")


def _places(names: Iterable[str], tensors: Collection[str], config: ModelConfig) -> dict[str, Place]:
    prefix = next((name.removesuffix(_WORDS) for name in tensors if name.endswith(_WORDS)), "")
    places = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        joined = _JOINED_MODULE.fullmatch(module)
        if joined and joined[2] in _JOINED:
            tensor, index = _JOINED[joined[2]]
            size = config.hidden_size if tensor == "Wqkv" else config.mlp.size
            rows = ((index * size, (index + 1) * size),)
            places[name] = Place(f"{prefix}{joined[1]}.{tensor}.{kind}", rows=rows)
        else:
            places[name] = Place(f"{_HEADS.get(module, prefix + module)}.{kind}")
    return places


MODERNBERT = Places(encoder=_places)

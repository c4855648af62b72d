"""The places of an encoder's weights in checkpoints; see `places.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from trunkline_server.models.config import ModelConfig
from trunkline_server.weights.places import Place, dense_place

_WORDS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
# Old files have these names in norms.
_OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# ModernBERT joins these, in this order.
_JOINED = {"query": ("Wqkv", 0), "key": ("Wqkv", 1), "value": ("Wqkv", 2), "gate": ("Wi", 0), "up": ("Wi", 1)}
_JOINED_MODULE = re.compile(r"(layers\.\d+\.(?:attn|mlp))\.(\w+)")


def encoder_places(names: Iterable[str], tensors: Collection[str], config: ModelConfig) -> dict[str, Place]:
    """Returns the places of an encoder's weights in safetensors. tensors: the names in the files."""
    prefix = next((name.removesuffix(words) for name in tensors for words in _WORDS if name.endswith(words)), "")
    # RoBERTa's head has both matrices.
    has_dense_head = "classifier.dense.weight" in tensors
    heads = {
        "score": "classifier.out_proj" if has_dense_head else "classifier",
        "pooler.dense": "classifier.dense" if has_dense_head else f"{prefix}pooler.dense",
        "head.dense": "head.dense",
        "head.norm": "head.norm",
    }
    places = {}
    for name in names:
        if (dense := dense_place(name, config)) is not None:
            places[name] = dense
            continue
        module, _, kind = name.rpartition(".")
        joined = _JOINED_MODULE.fullmatch(module)
        if joined and joined[2] in _JOINED:
            tensor, index = _JOINED[joined[2]]
            size = config.hidden_size if tensor == "Wqkv" else config.intermediate_size
            rows = ((index * size, (index + 1) * size),)
            places[name] = Place(f"{prefix}{joined[1]}.{tensor}.{kind}", rows=rows)
            continue
        tensor = f"{heads.get(module, prefix + module)}.{kind}"
        for new, spelling in _OLD.items():
            if tensor.endswith(new) and tensor not in tensors:
                tensor = tensor.removesuffix(new) + spelling
        places[name] = Place(tensor)
    return places

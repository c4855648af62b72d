"""The places of an encoder's weights in checkpoints; see `places.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable

from trunkline_server.models.config import ModelConfig
from trunkline_server.weights.places import Place, dense_place

_WORDS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
# Old files have these names in norms.
_OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# ModernBERT joins these, in this order.
_JOINED = {"query": ("Wqkv", 0), "key": ("Wqkv", 1), "value": ("Wqkv", 2), "gate": ("Wi", 0), "up": ("Wi", 1)}
_GGUF_WHOLE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "score": "cls.output",
}
_GGUF_MODULES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
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


def gguf_encoder_place(name: str, config: ModelConfig, tensors: Container[str]) -> Place:
    """Returns the place of one of BERT's weights in GGUF. tensors: the names in the file."""
    module, _, kind = name.rpartition(".")
    if module in _GGUF_WHOLE:
        return Place(f"{_GGUF_WHOLE[module]}.{kind}")
    layer, part = module.removeprefix("encoder.layer.").split(".", 1)
    return Place(f"blk.{layer}.{_GGUF_MODULES[part]}.{kind}")

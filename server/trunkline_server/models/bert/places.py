"""The names of the weights of BERT and its descendants."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import Place, Places

_WORDS = "embeddings.word_embeddings.weight"
# Old files have these names in norms.
_OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
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


def _places(names: Iterable[str], tensors: Collection[str], config: ModelConfig) -> dict[str, Place]:
    prefix = next((name.removesuffix(_WORDS) for name in tensors if name.endswith(_WORDS)), "")
    # RoBERTa's head has both matrices.
    has_dense_head = "classifier.dense.weight" in tensors
    heads = {
        "score": "classifier.out_proj" if has_dense_head else "classifier",
        "pooler.dense": "classifier.dense" if has_dense_head else f"{prefix}pooler.dense",
    }
    places = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        tensor = f"{heads.get(module, prefix + module)}.{kind}"
        for new, spelling in _OLD.items():
            if tensor.endswith(new) and tensor not in tensors:
                tensor = tensor.removesuffix(new) + spelling
        places[name] = Place(tensor)
    return places


def _gguf_place(name: str) -> Place:
    module, _, kind = name.rpartition(".")
    if module in _GGUF_WHOLE:
        return Place(f"{_GGUF_WHOLE[module]}.{kind}")
    layer, part = module.removeprefix("encoder.layer.").split(".", 1)
    return Place(f"blk.{layer}.{_GGUF_MODULES[part]}.{kind}")


BERT = Places(encoder=_places, gguf_encoder=_gguf_place)

from __future__ import annotations

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Architecture, Encoder
from trunkline_server.models.config import Attention, Mlp, ModelConfig, Norms, Positions, layer_range
from trunkline_server.models.keys import Keys
from trunkline_server.models.modernbert.forward import classifier, forward
from trunkline_server.models.modernbert.places import MODERNBERT
from trunkline_server.models.modernbert.shapes import weight_shapes
from trunkline_server.models.pooling import Pooling


def _from_json(name: str, keys: Keys) -> ModelConfig:
    keys.refuse_others({"hidden_activation": "gelu", "classifier_activation": "gelu"}, ("classifier_bias",))
    hidden_size, num_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    num_layers, local = keys.integer("num_hidden_layers"), keys.integer("local_attention", 128)
    attention_bias = keys.boolean("attention_bias", False)
    # A token sees half of the window on either side, and itself.
    windows = tuple(local // 2 + 1 if is_local else None for is_local in _local_layers(keys, num_layers))
    config = ModelConfig(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=hidden_size // max(num_heads, 1),
        max_position_embeddings=keys.integer("max_position_embeddings", 8192),
        norms=Norms(eps=keys.number("norm_eps", 1e-5), are_layer_norms=True, bias=keys.boolean("norm_bias", False)),
        attention=Attention(bias=attention_bias, output_bias=attention_bias, windows=windows),
        mlp=Mlp(size=keys.integer("intermediate_size"), bias=keys.boolean("mlp_bias", False)),
        positions=Positions(
            theta=_rope_theta(keys, "full_attention", "global_rope_theta", 160_000.0),
            local_theta=_rope_theta(keys, "sliding_attention", "local_rope_theta", 10_000.0),
            rotated_layers=(True,) * len(windows),
        ),
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
        return tuple(layer % interval != 0 for layer in layer_range(num_layers))
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


ARCHITECTURES = {
    "modernbert": Architecture(
        models="ModernBERT, gte-modernbert and its reranker",
        forward=forward,
        classifier=classifier,
        encoder=Encoder(from_json=_from_json, shapes=weight_shapes, classifier_pooling_key="classifier_pooling"),
        places=MODERNBERT,
    )
}

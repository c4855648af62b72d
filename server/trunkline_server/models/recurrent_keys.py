"""Keys about recurrent layers that several families have in `config.json` and GGUF."""

from __future__ import annotations

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import Recurrent, layer_range
from trunkline_server.models.keys import Keys

_RECURRENT = ("conv", "mamba", "linear_attention")
_ATTENTION = ("attention", "full_attention")


def layers_from_json(keys: Keys, num_layers: int) -> tuple[bool, ...] | None:
    """Returns which layers are recurrent; None if no key says it."""
    kinds = keys.get("layer_types" if "layer_types" in keys else "layers_block_type")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) < len(layer_range(num_layers)):
        raise keys.wrong("layer_types", f"a list of {num_layers} layers")
    known = (*_RECURRENT, *_ATTENTION)
    if (unknown := next((kind for kind in kinds if kind not in known), None)) is not None:
        raise UnsupportedArchitecture(f"layer type {quoted(str(unknown))} of `{keys.path}`", supported=known)
    return tuple(kind in _RECURRENT for kind in kinds[:num_layers])


def layers_by_interval(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Returns which layers are recurrent where every n-th has attention."""
    interval = keys.integer("full_attention_interval", 4)
    if interval < 1:
        raise keys.damaged(f"key `full_attention_interval` is {interval}, must be positive")
    return tuple((layer + 1) % interval != 0 for layer in layer_range(num_layers))


def layers_from_gguf(values: Keys, num_layers: int) -> tuple[tuple[bool, ...], int]:
    """Returns which layers are recurrent, as those without key/value heads, and the number of heads of the others."""
    counts = values.get("attention.head_count_kv")
    if not isinstance(counts, list) or len(counts) != num_layers or any(type(count) is not int for count in counts):
        raise values.wrong("attention.head_count_kv", f"{num_layers} integers")
    others = {count for count in counts if count != 0}
    if len(others) > 1:
        raise values.wrong("attention.head_count_kv", "one number for all layers with attention, 0 for others")
    return tuple(count == 0 for count in counts), others.pop() if others else 1


def state_from_gguf(values: Keys, layers: tuple[bool, ...], *, num_keys: int, conv_bias: bool) -> Recurrent:
    inner, num_heads = values.integer("ssm.inner_size"), values.integer("ssm.time_step_rank")
    recurrent = Recurrent(
        layers=layers,
        conv_width=values.integer("ssm.conv_kernel"),
        conv_bias=conv_bias,
        num_heads=num_heads,
        value_size=inner // max(num_heads, 1),
        num_keys=num_keys,
        key_size=values.integer("ssm.state_size"),
    )
    if recurrent.num_heads * recurrent.value_size != inner:
        raise values.damaged(f"{inner} features (`ssm.inner_size`) cannot be divided into {num_heads} heads evenly")
    return recurrent

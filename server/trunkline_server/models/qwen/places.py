"""The names of Qwen3-Next's weights."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import Place, Places, gguf_scan, safetensors_scan

_PROJECTIONS = ("mixer.qkv_proj", "mixer.gate_proj", "mixer.strength_proj", "mixer.step_proj")
_GATED = ("self_attn.q_proj", "self_attn.gate_proj")


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if module in _GATED:
        return Place(f"{layer}.self_attn.q_proj.{kind}", rows=_gated_rows(config, module))
    if module in _PROJECTIONS:
        return _projection(f"{layer}.linear_attn", module, kind, config)
    return safetensors_scan(f"{layer}.linear_attn", module, kind) if module.startswith("mixer.") else None


def _gguf_part(layer: str, module: str, kind: str, config: ModelConfig, tensors: Container[str]) -> Place | None:
    if module in _GATED:
        return Place(f"{layer}.attn_q.{kind}", rows=_gated_rows(config, module))
    if module not in _PROJECTIONS:
        return gguf_scan(layer, module, kind) if module.startswith("mixer.") else None
    divided = {"mixer.qkv_proj": f"{layer}.attn_qkv.{kind}", "mixer.gate_proj": f"{layer}.attn_gate.{kind}"}.get(module)
    if divided is not None and divided in tensors:
        return Place(divided)
    # Older files have the order of safetensors.
    joined = f"{layer}.ssm_{'ba' if divided is None else 'in'}.{kind}"
    return replace(_projection("", module, kind, config), tensor=joined)


def _gated_rows(config: ModelConfig, module: str) -> tuple[tuple[int, int], ...]:
    """Returns the rows of queries or gates, where those of each head follow each other."""
    size, first = config.head_size, _GATED.index(module)
    return tuple(((2 * head + first) * size, (2 * head + first + 1) * size) for head in range(config.num_heads))


def _projection(holder: str, module: str, kind: str, config: ModelConfig) -> Place:
    """Returns the place of a projection of the gated delta rule.

    For each key head the file has the rows of its query, key, values and gates, and in another tensor those of the
    strengths and steps of its values.
    """
    recurrent = config.recurrent
    assert recurrent is not None
    shared = recurrent.num_heads // recurrent.num_keys
    key, value = recurrent.key_size, shared * recurrent.value_size
    if module in ("mixer.strength_proj", "mixer.step_proj"):
        begins, sizes, tensor = [0, shared], [shared, shared], "in_proj_ba"
        parts = [0 if module == "mixer.strength_proj" else 1]
    else:
        begins, sizes, tensor = [0, key, 2 * key, 2 * key + value], [key, key, value, value], "in_proj_qkvz"
        parts = [3] if module == "mixer.gate_proj" else [0, 1, 2]
    group = sum(sizes)
    rows = tuple(
        (head * group + begins[part], head * group + begins[part] + sizes[part])
        for part in parts
        for head in range(recurrent.num_keys)
    )
    return Place(f"{holder}.{tensor}.{kind}", rows=rows)


QWEN3_NEXT = Places(
    part=_part,
    gguf_modules={"post_attention_layernorm": "post_attention_norm"},
    gguf_part=_gguf_part,
    has_offset_norms=True,
)

from __future__ import annotations

from dataclasses import replace

from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import NORMS_AROUND, RopeScaling
from trunkline_server.models.keys import Keys
from trunkline_server.models.places import Places

_ATTENTION_CAP, _LOGIT_CAP = 50.0, 30.0


def _from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    return {"embedding_multiplier": keys.integer("hidden_size") ** 0.5}


def _gemma3_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    # The files have a cap of scores, too, but transformers ignores it.
    return _from_json(keys, num_layers, scaling) | {
        "attention.query_pre_attn_scalar": keys.number("query_pre_attn_scalar", 256.0),
        "logit_soft_cap": keys.optional_number("final_logit_softcapping"),
    }


def _gemma2_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    def cap(key: str, default: float) -> float | None:
        return keys.optional_number(key) if key in keys else default

    return _gemma3_from_json(keys, num_layers, scaling) | {
        "attention.soft_cap": cap("attn_logit_softcapping", _ATTENTION_CAP),
        "logit_soft_cap": cap("final_logit_softcapping", _LOGIT_CAP),
    }


def _from_gguf(keys: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    return {"embedding_multiplier": keys.integer("embedding_length") ** 0.5}


def _gemma2_from_gguf(keys: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    return _from_gguf(keys, num_layers, scaling, num_rows) | {
        "attention.query_pre_attn_scalar": _scalar_from_gguf(keys, largest=46),
        "attention.soft_cap": keys.number("attn_logit_softcapping", _ATTENTION_CAP),
        "logit_soft_cap": keys.number("final_logit_softcapping", _LOGIT_CAP),
    }


def _gemma3_from_gguf(keys: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    scalar = {"attention.query_pre_attn_scalar": _scalar_from_gguf(keys, largest=62)}
    return _from_gguf(keys, num_layers, scaling, num_rows) | scalar


def _scalar_from_gguf(keys: Keys, largest: int) -> float:
    """Returns the head size. The model with the largest number of layers has the features per head instead."""
    per_head = keys.integer("embedding_length") // max(keys.integer("attention.head_count"), 1)
    is_largest = keys.integer("block_count") == largest
    return float(per_head if is_largest else keys.integer("attention.key_length", per_head))


_GEMMA = Architecture(
    models="Gemma",
    json=JsonKeys(head_size=256, tied=True, fields=_from_json),
    gguf=GgufKeys(name="gemma", fields=_from_gguf),
    places=Places(has_offset_norms=True),
    activation="gelu",
)
_GEMMA2 = replace(
    _GEMMA,
    models="Gemma 2",
    json=JsonKeys(
        spelling={"hidden_act": "hidden_activation"}, head_size=256, tied=True, has_windows=True, window=4096,
        window_pattern=2, fields=_gemma2_from_json,
    ),
    gguf=GgufKeys(name="gemma2", window_pattern=2, fields=_gemma2_from_gguf),
    layer_norms=NORMS_AROUND,
)  # fmt: skip
_GEMMA3 = replace(
    _GEMMA2,
    models="Gemma 3, text only",
    json=replace(
        _GEMMA2.json, window_pattern=6, rope_theta=1_000_000.0, has_local_rope=True, local_rope_theta=10_000.0,
        fields=_gemma3_from_json,
    ),
    gguf=GgufKeys(
        name="gemma3", window_pattern=6, rope_theta=1_000_000.0, fields=_gemma3_from_gguf,
        local_rope_theta=lambda keys: keys.number("rope.freq_base_swa", 10_000.0),
    ),
    query_key_norm=True,
)  # fmt: skip
ARCHITECTURES = {"gemma": _GEMMA, "gemma2": _GEMMA2, "gemma3_text": _GEMMA3}

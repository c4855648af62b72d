from __future__ import annotations

from dataclasses import replace

from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import ONE_NORM, RopeScaling
from trunkline_server.models.keys import Keys
from trunkline_server.models.places import Places


def _from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    return {"logit_multiplier": keys.number("logit_scale", 0.0625)}


def _from_gguf(keys: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    return {"logit_multiplier": keys.number("logit_scale")}


_COHERE = Architecture(
    models="Command R (without `use_qk_norm`)",
    json=JsonKeys(spelling={"rms_norm_eps": "layer_norm_eps"}, norm_eps=1e-5, tied=True, fields=_from_json),
    gguf=GgufKeys(name="command-r", fields=_from_gguf),
    places=Places(pairs_neighbours="everywhere"),
    layer_norms=ONE_NORM,
    is_layer_norm=True,
)
ARCHITECTURES = {
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        models="Command R7B, Command A",
        json=replace(_COHERE.json, has_windows=True, window=4096, window_pattern=4),
        gguf=GgufKeys(name="cohere2", window_pattern=4, fields=_from_gguf),
        rotates_in_windows=True,
    ),
}

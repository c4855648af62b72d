from __future__ import annotations

from dataclasses import replace

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.config import NORMS_BEHIND
from trunkline_server.models.keys import Keys


def _local_rope_theta(keys: Keys) -> float | None:
    if not keys.integer("attention.sliding_window", 0):
        return None
    return keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10_000.0))


_OLMO2 = Architecture(
    models="OLMo 2",
    json=JsonKeys(norm_eps=1e-5),
    gguf=GgufKeys(name="olmo2", window_pattern=4, local_rope_theta=_local_rope_theta),
    layer_norms=NORMS_BEHIND,
    query_key_norm=True,
    wide_query_key_norm=True,
)
ARCHITECTURES = {
    "olmo2": _OLMO2,
    "olmo3": replace(
        _OLMO2,
        models="OLMo 3",
        json=JsonKeys(norm_eps=1e-5, has_windows=True, window=4096, window_pattern=4, has_local_rope=True),
    ),
    "olmoe": Architecture(
        models="OLMoE",
        json=JsonKeys(attention_bias=False, attention_output_bias=False, expert_size_key="intermediate_size"),
        gguf=GgufKeys(name="olmoe", renormalises=False),
        query_key_norm=True,
        wide_query_key_norm=True,
    ),
}

from __future__ import annotations

from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys
from trunkline_server.models.config import RopeScaling
from trunkline_server.models.gpt_oss.places import GPT_OSS
from trunkline_server.models.keys import Keys
from trunkline_server.models.ops import ClampedSwiglu

_SWIGLU = ClampedSwiglu(alpha=1.702, limit=7.0)


def _from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    alpha, limit = keys.number("swiglu_alpha", _SWIGLU.alpha), keys.number("swiglu_limit", _SWIGLU.limit)
    return {"experts.activation": ClampedSwiglu(alpha=alpha, limit=limit)}


ARCHITECTURES = {
    "gpt_oss": Architecture(
        models="GPT-OSS",
        json=JsonKeys(
            biased=True, norm_eps=1e-5, head_size=64, rope_theta=150_000.0, has_windows=True, window=128,
            window_pattern=2, expert_size_key="intermediate_size", renormalises=True, fields=_from_json,
        ),
        # The metadata does not say that YaRN was trained without truncation.
        gguf=GgufKeys(name="gpt-oss", renormalises=True, window_pattern=2, truncates_yarn=False),
        places=GPT_OSS,
        attention_sinks=True,
        expert_bias=True,
        expert_activation=_SWIGLU,
    )
}  # fmt: skip

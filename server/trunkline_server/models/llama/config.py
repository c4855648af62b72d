from __future__ import annotations

from dataclasses import replace

from trunkline_server.models.architecture import Architecture, Fields, GgufKeys, JsonKeys, NumRows
from trunkline_server.models.config import RopeScaling, layer_range
from trunkline_server.models.keys import Keys
from trunkline_server.models.llama.places import MIXTRAL
from trunkline_server.models.places import Places

# The metadata of GGUF lacks this number; llama.cpp has it in its code for the architecture.
_SMOLLM3_NOPE_INTERVAL = 4


def _smollm3_from_json(keys: Keys, num_layers: int, scaling: RopeScaling) -> Fields:
    layers, marks = layer_range(num_layers), keys.get("no_rope_layers")
    if marks is None:
        interval = keys.integer("no_rope_layer_interval", _SMOLLM3_NOPE_INTERVAL)
        if interval < 1:
            raise keys.damaged(f"key `no_rope_layer_interval` is {interval}, must be positive")
        return {"positions.rotated_layers": tuple((layer + 1) % interval != 0 for layer in layers)}
    # Despite the key's name, 1 marks a layer that rotates.
    if not isinstance(marks, list) or len(marks) < len(layers) or any(mark not in (0, 1) for mark in marks):
        raise keys.damaged(f"key `no_rope_layers` is not a list of {len(layers)} zeros and ones")
    return {"positions.rotated_layers": tuple(mark == 1 for mark in marks[: len(layers)])}


def _smollm3_from_gguf(keys: Keys, num_layers: int, scaling: RopeScaling, num_rows: NumRows) -> Fields:
    return {
        "positions.rotated_layers": tuple(
            (layer + 1) % _SMOLLM3_NOPE_INTERVAL != 0 for layer in layer_range(num_layers)
        )
    }


_UNBIASED = JsonKeys(attention_bias=False, attention_output_bias=False)
ARCHITECTURES = {
    "llama": Architecture(
        models="Llama 2 and 3, Falcon 3, SmolLM2, Yi, DeepSeek-LLM",
        json=JsonKeys(has_mlp_bias=True),
        gguf=GgufKeys(name="llama", has_windows=True),
        places=Places(pairs_neighbours="in GGUF"),
    ),
    # Mistral calls itself "llama" in GGUF, as SmolLM2 and others do.
    "mistral": Architecture(
        models="Mistral",
        json=replace(_UNBIASED, has_windows=True, window=4096),
        gguf=GgufKeys(name="llama"),
    ),
    "mixtral": Architecture(
        models="Mixtral",
        json=replace(
            _UNBIASED, has_windows=True, rope_theta=1_000_000.0, expert_size_key="intermediate_size", renormalises=True,
        ),
        gguf=GgufKeys(name="llama", renormalises=True),
        places=MIXTRAL,
    ),
    "ernie4_5": Architecture(
        models="ERNIE 4.5, dense",
        json=JsonKeys(
            spelling={"attention_bias": "use_bias", "mlp_bias": "use_bias"}, head_size=128, norm_eps=1e-5,
            has_mlp_bias=True, rope_theta=500_000.0, tied=True,
        ),
        gguf=GgufKeys(name="ernie4_5"),
        places=Places(pairs_neighbours="everywhere"),
    ),
    "seed_oss": Architecture(
        models="Seed-OSS",
        json=JsonKeys(head_size=128, biased=True, output_biased=False, has_mlp_bias=True),
        gguf=GgufKeys(name="seed_oss"),
        places=Places(gguf_modules={"post_attention_layernorm": "post_attention_norm"}),
    ),
    "smollm3": Architecture(
        models="SmolLM3",
        json=JsonKeys(has_mlp_bias=True, rope_theta=2_000_000.0, tied=True, fields=_smollm3_from_json),
        gguf=GgufKeys(name="smollm3", fields=_smollm3_from_gguf),
        places=Places(pairs_neighbours="in GGUF"),
    ),
}  # fmt: skip

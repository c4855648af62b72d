from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.places import Places

ARCHITECTURES = {
    "nemotron": Architecture(
        models="Nemotron-4, Minitron",
        json=JsonKeys(spelling={"rms_norm_eps": "norm_eps"}, norm_eps=1e-5, has_mlp_bias=True, rotated=0.5),
        gguf=GgufKeys(name="nemotron"),
        places=Places(has_offset_norms=True),
        activation="relu_squared",
        is_layer_norm=True,
        norm_bias=True,
        gated_mlp=False,
    )
}

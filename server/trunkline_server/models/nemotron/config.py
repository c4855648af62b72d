"""Nemotron-4 and Minitron (arXiv:2402.16819, arXiv:2407.14679): layer norms with biases, an MLP without a gate, and a
squared ReLU.

Half of each head is rotated. Safetensors hold norm weights minus 1; see `weights/places.py`.
"""

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

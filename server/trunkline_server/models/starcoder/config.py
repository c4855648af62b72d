from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.places import Places

ARCHITECTURES = {
    "starcoder2": Architecture(
        models="StarCoder2",
        json=JsonKeys(
            spelling={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
            biased=True, norm_eps=1e-5, has_mlp_bias=True, has_windows=True, tied=True,
        ),
        gguf=GgufKeys(name="starcoder2"),
        places=Places(modules={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}),
        activation="gelu",
        is_layer_norm=True,
        norm_bias=True,
        gated_mlp=False,
    )
}  # fmt: skip

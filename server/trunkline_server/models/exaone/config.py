from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.config import NORMS_BEHIND
from trunkline_server.models.exaone.places import EXAONE

ARCHITECTURES = {
    "exaone": Architecture(
        models="EXAONE 3",
        json=JsonKeys(
            spelling={"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
                      "hidden_act": "activation_function"},
            norm_eps=1e-5,
        ),
        gguf=GgufKeys(name="exaone"),
        places=EXAONE,
    ),
    "exaone4": Architecture(
        models="EXAONE 4",
        json=JsonKeys(norm_eps=1e-5, has_windows=True, window=4096, window_pattern=4),
        gguf=GgufKeys(name="exaone4", window_pattern=4),
        layer_norms=NORMS_BEHIND,
        query_key_norm=True,
        rotates_in_windows=True,
    ),
}  # fmt: skip

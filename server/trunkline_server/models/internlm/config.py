from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.internlm.places import INTERNLM2

ARCHITECTURES = {
    "internlm2": Architecture(
        models="InternLM 2",
        json=JsonKeys(spelling={"attention_bias": "bias"}),
        gguf=GgufKeys(name="internlm2"),
        places=INTERNLM2,
    ),
    "internlm3": Architecture(
        models="InternLM 3",
        json=JsonKeys(
            spelling={"attention_bias": "qkv_bias", "attention_out_bias": "bias", "mlp_bias": "bias"}, has_mlp_bias=True
        ),
    ),
}

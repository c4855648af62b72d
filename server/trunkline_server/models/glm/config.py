from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.config import NORMS_AROUND
from trunkline_server.models.glm.places import GLM, GLM4

_JSON = JsonKeys(head_size=128, norm_eps=1.5625e-7, rotated=0.5, attention_output_bias=False, biased=True)
ARCHITECTURES = {
    "glm": Architecture(models="GLM-4-9B", json=_JSON, places=GLM),
    "glm4": Architecture(
        models="GLM-4-0414", json=_JSON, gguf=GgufKeys(name="glm4"), places=GLM4, layer_norms=NORMS_AROUND
    ),
}

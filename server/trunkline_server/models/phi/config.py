from __future__ import annotations

from trunkline_server.models.architecture import Architecture, GgufKeys, JsonKeys
from trunkline_server.models.phi.places import PHI3

ARCHITECTURES = {
    "phi3": Architecture(
        models="Phi-3, Phi-3.5, Phi-4",
        json=JsonKeys(attention_bias=False, attention_output_bias=False, norm_eps=1e-5, rotated=1.0, has_windows=True),
        gguf=GgufKeys(name="phi3", has_windows=True),
        places=PHI3,
    )
}

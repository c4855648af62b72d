"""Random LoRA adapters of the embedded model, as PEFT writes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

# Outputs and inputs of the matrices of a layer.
SHAPES = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (192, 576),
    "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.gate_proj": (1536, 576),
    "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536),
}
NUM_LAYERS = 30


def write_adapter(folder: Path, seed: int, *, rank: int = 16, num_layers: int = NUM_LAYERS) -> Path:
    """Writes an adapter of all matrices in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    header, parts, end = {}, [], 0
    for layer in range(num_layers):
        for module, (outputs, inputs) in SHAPES.items():
            for letter, shape, size in (("A", (rank, inputs), 0.05), ("B", (outputs, rank), 0.02)):
                values = (rng.standard_normal(shape) * size).astype(np.float32)
                part = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
                key = f"base_model.model.model.layers.{layer}.{module}.lora_{letter}.weight"
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(part)]}
                parts.append(part)
                end += len(part)
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    write_config(folder, rank, rank)
    return folder


def write_config(folder: Path, rank: int, alpha: float) -> None:
    keys = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(keys))

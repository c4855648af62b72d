"""Writes GPT-OSS with its experts in MXFP4, as its publisher stores them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.models.tiny import TinyModel


def mxfp4_stack(matrices: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Quantises [E, K, N] to blocks [E, N, K / 32, 16] and scales [E, N, K / 32]."""
    num_experts, num_inputs, num_outputs = matrices.shape
    rows = gguf.quantize(matrices.swapaxes(1, 2), gguf.GGMLQuantizationType.MXFP4)
    groups = rows.reshape(num_experts, num_outputs, num_inputs // 32, 17)
    # Elements 0 to 15 are the lower halves of GGUF's bytes. In these files a byte has two neighbours.
    elements = np.concatenate([groups[..., 1:] & 15, groups[..., 1:] >> 4], axis=-1)
    return elements[..., 0::2] | elements[..., 1::2] << 4, np.ascontiguousarray(groups[..., 0])


def mxfp4_tensors(model: TinyModel) -> dict[str, NDArray[np.uint8] | NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.uint8] | NDArray[np.float32]] = {}
    for name, weight in model.stored_weights.items():
        if name.endswith((".gate_up_proj", ".down_proj")):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = mxfp4_stack(weight)
        else:
            tensors[name] = weight
    return tensors


def write_mxfp4(
    model: TinyModel, folder: Path, tensors: dict[str, NDArray[np.uint8] | NDArray[np.float32]] | None = None
) -> Path:
    """Writes safetensors and `config.json`; returns the folder. tensors: instead of those of `mxfp4_tensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = mxfp4_tensors(model) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    scheme = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**model.config, "quantization_config": scheme}))
    return folder

"""Random adapters for the tiny models, written as PEFT and llama.cpp's converter write them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.models.tiny import TinyModel
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.config_json import config_from_json
from trunkline_server.weights.places import is_expert, is_head, safetensors_place

Floats = NDArray[np.float32]
Pairs = dict[str, tuple[Floats, Floats]]
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "bias": "none",
    "task_type": "CAUSAL_LM",
    "peft_version": "0.18",
}


def config_of(model: TinyModel) -> ModelConfig:
    return config_from_json(Path("config.json"), model.config)


def modules_of(model: TinyModel) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the files' matrices in layers, [outputs, inputs], without experts and single heads."""
    config, stored = config_of(model), model.stored_weights
    names = [name for name in model.weights if ".layers." in name and not is_expert(name) and not is_head(name)]
    tensors = [safetensors_place(name, config).tensor for name in names if name.endswith(".weight")]
    return {
        tensor.removesuffix(".weight"): stored[tensor].shape
        for tensor in tensors
        if tensor in stored and stored[tensor].ndim == 2
    }


def random_pair(name: str, shape: tuple[int, int], rank: int) -> tuple[Floats, Floats]:
    """Returns A [R, K] and B [N, R]."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    a, b = random.standard_normal((rank, shape[1])), random.standard_normal((shape[0], rank))
    return a.astype(np.float32), b.astype(np.float32)


def magnitudes_of(model: TinyModel) -> dict[str, Floats]:
    """Returns tensors of DoRA for all matrices that take an adapter: their rows' norms, changed by up to a half."""
    random, stored = np.random.default_rng(5), model.stored_weights
    norms = {name: np.linalg.norm(stored[f"{name}.weight"], axis=1) for name in modules_of(model)}
    return {
        f"base_model.model.{name}.lora_magnitude_vector": (of_rows * random.uniform(0.5, 1.5, len(of_rows))).astype("f")
        for name, of_rows in norms.items()
    }


def _save_tensors(path: Path, tensors: dict[str, NDArray[Any]], dtype: str) -> None:
    """Writes safetensors, floats of 32 bits as F32, F16 or BF16; numpy has no dtype for the last."""
    header, data = dict[str, Any](), b""
    for name, values in tensors.items():
        wide = values.dtype == np.float32
        if not wide:
            part = values.tobytes()
        elif dtype == "BF16":
            part = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            part = values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
        own = {"i": f"I{8 * values.itemsize}", "f": f"F{8 * values.itemsize}"}[values.dtype.kind]
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": dtype if wide else own, "shape": values.shape, "data_offsets": offsets}
        data += part
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def save_peft(
    folder: Path, pairs: Pairs, others: dict[str, NDArray[Any]] | None = None, *, dtype: str = "F32", **config: Any
) -> Path:
    """Writes a folder of PEFT. pairs: A and B by module; others: more tensors; config: keys that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{module}.lora_{letter}.weight": values
        for module, factors in pairs.items()
        for letter, values in zip("AB", factors, strict=True)
    }
    _save_tensors(folder / "adapter_model.safetensors", tensors | (others or {}), dtype)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return folder


def save_gguf(path: Path, architecture: str, pairs: Pairs, alpha: float = 8.0, **metadata: Any) -> Path:
    """Writes a GGUF adapter. pairs: A and B by the base model's tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(metadata.get("type", gguf.GGUFType.ADAPTER))
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    if "invocation" in metadata:
        writer.add_array("adapter.alora.invocation_tokens", metadata["invocation"])
    for tensor, (a, b) in pairs.items():
        writer.add_tensor(f"{tensor}.lora_a", a)
        writer.add_tensor(f"{tensor}.lora_b", np.ascontiguousarray(b))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

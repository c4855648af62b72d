"""Writes quantised checkpoints in the formats of common tools, by plain loops over bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

# A quantiser's output for a weight [N, K]: tensors by suffix, and the f32 weight that they encode.
Made = tuple[dict[str, torch.Tensor], torch.Tensor]
Quantizer = Callable[[torch.Tensor], Made]

GROUP = 32
E4M3 = torch.float8_e4m3fn


def words(numbers: torch.Tensor, bits: int, columns: tuple[int, ...] | None = None) -> torch.Tensor:
    """Packs unsigned numbers [.., n] into i32 [.., n * bits / 32]. columns: their order in each word's nibbles."""
    in_word = 32 // bits
    grouped = numbers.long().reshape(*numbers.shape[:-1], -1, in_word)
    columns = columns or tuple(range(in_word))
    packed = sum(grouped[..., column] << (bits * at) for at, column in enumerate(columns))
    assert isinstance(packed, torch.Tensor)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def affine(groups: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantises groups [N, G, n] to numbers, with f16 scales and zero points [N, G]."""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / ((1 << bits) - 1)).clamp(min=1e-4).to(torch.float16)
    # A format with an offset of one can store only zero points of at least 1.
    zeros = torch.round(-low / scales.float()).clamp(1, (1 << bits) - 1)
    numbers = torch.round(groups / scales.float()[..., None] + zeros[..., None]).clamp(0, (1 << bits) - 1)
    return numbers, scales, zeros


def gptq(weight: torch.Tensor, bits: int, *, is_shuffled: bool, offset: int) -> Made:
    num_outputs, num_inputs = weight.shape
    order = torch.randperm(num_inputs) if is_shuffled else torch.arange(num_inputs)
    numbers, scales, zeros = affine(weight[:, order].reshape(num_outputs, -1, GROUP), bits)
    meant = ((numbers - zeros[..., None]) * scales.float()[..., None]).flatten(1)
    back = order.argsort()
    parts = {
        "qweight": words(numbers.flatten(1)[:, back], bits).T.contiguous(),
        "qzeros": words((zeros - offset).T.contiguous(), bits),
        "scales": scales.T.contiguous(),
        "g_idx": (back // GROUP).to(torch.int32),
    }
    return parts, meant[:, back]


def awq(weight: torch.Tensor) -> Made:
    numbers, scales, zeros = affine(weight.reshape(weight.shape[0], -1, GROUP), 4)
    meant = ((numbers - zeros[..., None]) * scales.float()[..., None]).flatten(1)
    columns = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "qweight": words(numbers.flatten(1).T.contiguous(), 4, columns),
        "qzeros": words(zeros.T.contiguous(), 4, columns),
        "scales": scales.T.contiguous(),
    }
    return parts, meant


def packed_with_zeros(weight: torch.Tensor, bits: int) -> Made:
    numbers, scales, zeros = affine(weight.reshape(weight.shape[0], -1, GROUP), bits)
    # Rows fill whole words; the last word is padded.
    rows = torch.nn.functional.pad(zeros.T, (0, -zeros.shape[0] % (32 // bits)))
    parts = {
        "weight_packed": words(numbers.flatten(1), bits),
        "weight_scale": scales,
        "weight_zero_point": words(rows, bits).T.contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts, ((numbers - zeros[..., None]) * scales.float()[..., None]).flatten(1)


def packed(weight: torch.Tensor, bits: int) -> Made:
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    half = 1 << (bits - 1)
    scales = (groups.abs().amax(-1) / (half - 1)).to(torch.bfloat16)
    numbers = torch.round(groups / scales.float()[..., None]).clamp(-half, half - 1)
    parts = {
        "weight_packed": words((numbers + half).flatten(1), bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts, (numbers * scales.float()[..., None]).flatten(1)


def fp8(weight: torch.Tensor, *, is_per_row: bool, input_scale: float | None = None) -> Made:
    peak = weight.abs().amax(1, keepdim=True) if is_per_row else weight.abs().amax()
    scales = peak.float() / 448.0
    values = (weight / scales).to(E4M3)
    parts = {"weight": values, "weight_scale": scales}
    if input_scale is not None:
        parts["input_scale"] = torch.tensor(input_scale)
    return parts, values.float() * scales


def fp8_blocks(weight: torch.Tensor, block: tuple[int, int], scale_name: str) -> Made:
    num_rows, num_columns = (-(-size // of_block) for size, of_block in zip(weight.shape, block, strict=True))
    scales, values = torch.empty(num_rows, num_columns), torch.empty(weight.shape, dtype=E4M3)
    meant = torch.empty(weight.shape)
    for row in range(num_rows):
        for column in range(num_columns):
            at = (slice(row * block[0], (row + 1) * block[0]), slice(column * block[1], (column + 1) * block[1]))
            scales[row, column] = weight[at].abs().max() / 448.0
            values[at] = (weight[at] / scales[row, column]).to(E4M3)
            meant[at] = values[at].float() * scales[row, column]
    return {"weight": values, scale_name: scales}, meant


def int8(weight: torch.Tensor, scale_name: str) -> Made:
    peak = weight.abs().amax(1, keepdim=True).float()
    values = torch.round(weight / peak * 127).to(torch.int8)
    is_peak = scale_name == "SCB"
    parts = {"weight": values, scale_name: peak[:, 0] if is_peak else peak / 127}
    return parts, values.float() * peak / 127


def nf4(weight: torch.Tensor, *, is_nested: bool) -> Made:
    table = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                          0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0])  # fmt: skip
    blocks = weight.reshape(-1, GROUP)
    peaks = blocks.abs().amax(1)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": GROUP, "shape": list(weight.shape), "dtype": "bfloat16"}
    parts = {"weight.quant_map": table}
    if is_nested:
        offset, nested_table = peaks.mean(), torch.linspace(-1, 1, 256)
        shifted = torch.nn.functional.pad(peaks - offset, (0, -len(peaks) % 256)).view(-1, 256)
        nested_peaks = shifted.abs().amax(1)
        codes = ((shifted / nested_peaks[:, None])[..., None] - nested_table).abs().argmin(-1)
        peaks = (nested_table[codes] * nested_peaks[:, None]).flatten()[: len(peaks)] + offset
        state |= {"nested_blocksize": 256, "nested_offset": offset.item(), "nested_dtype": "float32"}
        parts |= {
            "weight.absmax": codes.flatten()[: len(peaks)].to(torch.uint8),
            "weight.nested_absmax": nested_peaks,
            "weight.nested_quant_map": nested_table,
        }
    else:
        parts["weight.absmax"] = peaks
    codes = ((blocks / peaks[:, None])[..., None] - table).abs().argmin(-1)
    pairs = codes.flatten().view(-1, 2)
    parts["weight"] = ((pairs[:, 0] << 4) | pairs[:, 1]).to(torch.uint8)[:, None]
    parts["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return parts, (table[codes] * peaks[:, None]).view(weight.shape)


def compressed(stored_as: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": stored_as, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }  # fmt: skip


def _number(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


_DYNAMIC = {"strategy": "token", "dynamic": True}
_ASYMMETRIC = {"symmetric": False}
# Maps a case to its `quantization_config` and the quantiser of linear weights.
CASES: dict[str, tuple[dict[str, Any], Quantizer]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
        lambda weight: gptq(weight, 4, is_shuffled=False, offset=1),
    ),
    "gptq_act_order": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, 4, is_shuffled=True, offset=0),
    ),
    "gptq_8": (
        {"quant_method": "gptq", "bits": 8, "group_size": GROUP},
        lambda weight: gptq(weight, 8, is_shuffled=False, offset=1),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "packed_4": (
        compressed("pack-quantized", _number(4, "int", "group", group_size=GROUP), None),
        lambda weight: packed(weight, 4),
    ),
    "packed_8": (
        compressed("pack-quantized", _number(8, "int", "group", group_size=GROUP), None),
        lambda weight: packed(weight, 8),
    ),
    "packed_4_with_zeros": (
        compressed("pack-quantized", _number(4, "int", "group", group_size=GROUP) | _ASYMMETRIC, None),
        lambda weight: packed_with_zeros(weight, 4),
    ),
    "packed_8_with_zeros": (
        compressed("pack-quantized", _number(8, "int", "group", group_size=GROUP) | _ASYMMETRIC, None),
        lambda weight: packed_with_zeros(weight, 8),
    ),
    "fp8_dynamic": (
        compressed("float-quantized", _number(8, "float", "channel"), _number(8, "float", "token") | _DYNAMIC),
        lambda weight: fp8(weight, is_per_row=True),
    ),
    "fp8_static": (
        compressed("float-quantized", _number(8, "float", "tensor"), _number(8, "float", "tensor")),
        lambda weight: fp8(weight, is_per_row=False, input_scale=0.02),
    ),
    "fbgemm_fp8": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        lambda weight: fp8(weight, is_per_row=True),
    ),
    "fp8_blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, GROUP]},
        lambda weight: fp8_blocks(weight, (24, GROUP), "weight_scale_inv"),
    ),
    "compressed_fp8_blocks": (
        compressed(
            "float-quantized",
            _number(8, "float", "block", block_structure=[GROUP, GROUP]),
            _number(8, "float", "group", group_size=GROUP) | {"dynamic": True},
        ),
        lambda weight: fp8_blocks(weight, (GROUP, GROUP), "weight_scale"),
    ),
    "fp8_weights": (
        compressed("float-quantized", _number(8, "float", "channel"), None),
        lambda weight: fp8(weight, is_per_row=True),
    ),
    "int8_dynamic": (
        compressed("int-quantized", _number(8, "int", "channel"), _number(8, "int", "token") | _DYNAMIC),
        lambda weight: int8(weight, "weight_scale"),
    ),
    "int8_weights": (
        compressed("int-quantized", _number(8, "int", "channel"), None),
        lambda weight: int8(weight, "weight_scale"),
    ),
    "bitsandbytes_8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
        lambda weight: int8(weight, "SCB"),
    ),
    "bitsandbytes_4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda weight: nf4(weight, is_nested=False),
    ),
    "bitsandbytes_4_nested": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        lambda weight: nf4(weight, is_nested=True),
    ),
}


def write_quantized(model: Path, folder: Path, case: str) -> dict[str, torch.Tensor]:
    """Copies a model with all linear weights of its layers quantised; returns the f32 weights that they encode."""
    config, quantize = CASES[case]
    torch.manual_seed(5)
    meant: dict[str, torch.Tensor] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if not name.endswith(("_proj.weight", "_proj_with_mqa.weight")):
            tensors[name] = tensor
            continue
        parts, meant[name] = quantize(tensor.float())
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{suffix}": part.contiguous() for suffix, part in parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((model / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(values))
    return meant


def write_dequantized(model: Path, folder: Path, meant: dict[str, torch.Tensor]) -> Path:
    """Writes the model with the f32 weights that the quantised ones encode."""
    tensors = load_file(model / "model.safetensors") | {name: weight.contiguous() for name, weight in meant.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((model / "config.json").read_bytes())
    return folder

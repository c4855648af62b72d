"""Formats to which matrices of unquantised checkpoints are quantised while they are packed (`--quantize`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline_server.errors import InvalidArgument
from trunkline_server.weights.quantization import Awq, Gptq, Mxfp4
from trunkline_server.weights.tensor import stored_bytes

if TYPE_CHECKING:
    from trunkline_server.weights.checkpoint import Checkpoint
    from trunkline_server.weights.tensor import Weight

NONE = "none"
# The formats of a layer's matrices, and of embedding and head, by the bits of `--quantize`.
_FORMATS = {"int8": ("Q8_0", "Q8_0"), "int4": ("Q4_1", "Q8_0")}
QUANTIZED = tuple(_FORMATS)
# TGI's names for what is done here, and for checkpoints that are quantised already.
_ALIASES = {"bitsandbytes": "int8", "eetq": "int8"}
_CHECKPOINTS = {"awq": Awq, "gptq": Gptq}
_FLOATS = ("F32", "F16", "BF16")
_WHOLE_MODEL = ("model.embed_tokens.weight", "lm_head.weight")
# The scores of experts and gates decide much and are small.
_KEPT = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
_GROUP = 32


def bits_of(option: str, checkpoint: Checkpoint) -> str:
    """Returns `int8`, `int4`, or `none`. Raises InvalidArgument for a checkpoint that contradicts the option."""
    scheme = checkpoint.quantization
    if option in _CHECKPOINTS:
        if not isinstance(scheme, _CHECKPOINTS[option]):
            raise InvalidArgument(
                f"`--quantize` is {option}, but `{checkpoint.path}` is not quantised with it",
                hint="drop the flag; the files say how they are quantised",
            )
        return NONE
    bits = _ALIASES.get(option, option)
    if bits != NONE and not _has_floats(checkpoint, bits):
        raise InvalidArgument(
            f"`--quantize` is {option}, but `{checkpoint.path}` is quantised already", hint="drop the flag"
        )
    return bits


def _has_floats(checkpoint: Checkpoint, bits: str) -> bool:
    """Returns whether any matrix would be quantised; the matrices of GGUF files may be quantised already."""
    return checkpoint.quantization is None and any(
        quantized_format(checkpoint.tensor(name), bits) is not None for name in checkpoint.names()
    )


def quantized_format(tensor: Weight, bits: str) -> str | None:
    """Returns the format to which a tensor is quantised, None if it stays as it is. bits: the result of `bits_of`."""
    if bits == NONE or tensor.format not in _FLOATS or len(tensor.shape) != 2:
        return None
    if tensor.shape[1] % _GROUP != 0 or tensor.name.endswith(_KEPT):
        return None
    return _FORMATS[bits][tensor.name in _WHOLE_MODEL]


def quantized_bytes(checkpoint: Checkpoint, bits: str) -> int:
    """Returns the bytes of all weights of an unquantised checkpoint once they are quantised, before packing."""
    tensors = {tensor.name: tensor for tensor in map(checkpoint.tensor, checkpoint.names())}
    return sum(
        stored_bytes(quantized_format(tensor, bits) or tensor.format, tensor.shape) for tensor in tensors.values()
    )


def packed_growth(checkpoint: Checkpoint) -> int:
    """Returns the bytes by which matrices of GGUF's formats exceed their stored size once they are packed."""
    from trunkline_server import _kernels

    if not isinstance(checkpoint.quantization, Mxfp4 | None):
        return 0
    tensors = {tensor.name: tensor for tensor in map(checkpoint.encoded, checkpoint.names())}
    matrices = [tensor for tensor in tensors.values() if len(tensor.shape) == 2 and tensor.format not in _FLOATS]
    return sum(
        max(0, _kernels.packed_bytes(each.format, *each.shape) - stored_bytes(each.format, each.shape))
        for each in matrices
    )

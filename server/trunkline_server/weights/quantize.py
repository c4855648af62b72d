"""Matrices of unquantised checkpoints in the formats of `--quantize`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trunkline_server.errors import DamagedFile, InvalidArgument, quoted
from trunkline_server.weights.completeness import stored_shapes
from trunkline_server.weights.places import is_head
from trunkline_server.weights.quantization import Awq, EightBits, FourBitFloats, Gptq, Quantization
from trunkline_server.weights.tensor import EncodedTensor, Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline_server.weights.checkpoint import Checkpoint
    from trunkline_server.weights.fingerprint import PageSums
    from trunkline_server.weights.identity import SourceIdentity
    from trunkline_server.weights.quantized_parts import Part
    from trunkline_server.weights.tensor import Weight

logger = logging.getLogger(__name__)

NONE = "none"
FP8 = "fp8"
# The formats of a layer's matrices, and of embedding and head, by the bits of `--quantize`.
_FORMATS = {"int8": ("Q8_0", "Q8_0"), "int4": ("Q4_1", "Q8_0")}
QUANTIZED = tuple(_FORMATS)
# TGI's names.
_ALIASES = {"bitsandbytes": "int8", "eetq": "int8", "bitsandbytes-nf4": "nf4", "bitsandbytes-fp4": "fp4"}
# The formats to which only the cuda backend quantises, by what comes nearest to them on others.
ON_DEVICE = {FP8: "int8", "nf4": "int4", "fp4": "int4"}
# TGI's names for checkpoints that are quantised already.
_CHECKPOINTS = {"awq": Awq, "gptq": Gptq}
_FLOATS = ("F32", "F16", "BF16")
WHOLE_MODEL = ("model.embed_tokens.weight", "lm_head.weight")
# The scores of experts and gates decide much and are small.
KEPT = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
_GROUP = 32


def bits_of(option: str, checkpoint: Checkpoint, *, on_device: bool = False) -> str:
    """Returns `int8`, `int4`, `none`, or a key of `ON_DEVICE` if the backend quantises on its device.

    option: a value of `--quantize`. Raises InvalidArgument for a checkpoint that contradicts it.
    """
    scheme = checkpoint.quantization
    if option in _CHECKPOINTS:
        if not isinstance(scheme, _CHECKPOINTS[option]):
            raise InvalidArgument(
                f"`--quantize` is {option}, but `{checkpoint.path}` is not quantised with it",
                hint="drop the flag; the files say how they are quantised",
            )
        return NONE
    bits = _ALIASES.get(option, option)
    bits = bits if on_device else ON_DEVICE.get(bits, bits)
    if bits != NONE and not has_floats(checkpoint, keeps_fp8=on_device):
        raise InvalidArgument(
            f"`--quantize` is {option}, but `{checkpoint.path}` is quantised already", hint="drop the flag"
        )
    if bits != option:
        logger.info("`--quantize %s` is %s on this backend", option, bits)
    return bits


def has_floats(checkpoint: Checkpoint, *, keeps_fp8: bool = False) -> bool:
    """Returns True if any matrix would be quantised; the matrices of GGUF files may be quantised already.

    keeps_fp8: FP8, NF4 and FP4 are multiplied as they are, instead of being decoded to bf16.
    """
    scheme = checkpoint.quantization
    is_decoded = isinstance(scheme, FourBitFloats) or (isinstance(scheme, EightBits) and scheme.is_float)
    if scheme is not None and (keeps_fp8 or not is_decoded):
        return False
    matrices, _ = stored_shapes(checkpoint.config, checkpoint.names())
    return any(is_quantizable(checkpoint.encoded(name)) for name in matrices)


def is_quantizable(tensor: Weight) -> bool:
    """Returns True if a tensor is a matrix of floats that quantising changes."""
    is_matrix = tensor.format in _FLOATS and len(tensor.shape) == 2 and tensor.shape[1] % _GROUP == 0
    return is_matrix and not tensor.name.endswith(KEPT)


def quantized_format(tensor: Weight, bits: str) -> str | None:
    """Returns the format to which a tensor is quantised, None if it stays as it is. bits: `none`, `int8` or `int4`."""
    if bits == NONE or not is_quantizable(tensor):
        return None
    return _FORMATS[bits][tensor.name in WHOLE_MODEL]


class QuantizedCheckpoint:
    """A checkpoint of floats whose matrices are quantised when they are read.

    bits: `int8` or `int4`. keeps_heads: those of single heads stay as they are.
    """

    def __init__(self, checkpoint: Checkpoint, bits: str, *, keeps_heads: bool = False) -> None:
        self._checkpoint, self._bits, self._keeps_heads = checkpoint, bits, keeps_heads
        self.config, self.path = checkpoint.config, checkpoint.path
        self.quantization: Quantization | None = None

    def names(self) -> Sequence[str]:
        return self._checkpoint.names()

    def tensor(self, name: str) -> Tensor:
        """Returns a weight as `Checkpoint.tensor` does. Raises DamagedFile if one of its numbers is not finite."""
        tensor = self._checkpoint.tensor(name)
        stored_as = self._format(tensor)
        return tensor if stored_as is None else quantized(tensor, stored_as, self.path)

    def encoded(self, name: str) -> Weight:
        tensor = self._checkpoint.encoded(name)
        stored_as = self._format(tensor)
        if stored_as is None:
            return tensor
        read = partial(self.tensor, name)
        return EncodedTensor(tensor.name, stored_as, tensor.shape, read, tensor.interleaved_heads)

    def _format(self, tensor: Weight) -> str | None:
        if self._keeps_heads and is_head(tensor.name):
            return None
        return quantized_format(tensor, self._bits)

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        """Returns nothing, as weights that were in parts are one tensor each."""
        return {}

    def parts(self, name: str) -> Mapping[str, Part]:
        return {}

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return f"{self._checkpoint.fingerprint(page_sums)} {self._bits}"

    def identity(self) -> SourceIdentity:
        whole = self._checkpoint.identity()
        return replace(whole, digest=hashlib.sha256(whole.digest + self._bits.encode()).digest())


def quantized(tensor: Tensor, stored_as: str, path: Path) -> Tensor:
    """Returns a matrix of floats in another format, its rows in the same order.

    path: of the checkpoint. Raises DamagedFile if a number is not finite or too large.
    """
    from trunkline_server import _kernels

    try:
        data = _kernels.quantize_rows(tensor.format, tensor.data, stored_as, tensor.shape[1])
    except FloatingPointError as error:
        raise DamagedFile(path, f"tensor {quoted(tensor.name)} cannot be quantised: {error}") from error
    return replace(tensor, format=stored_as, data=memoryview(data), is_mapped=False)

"""Parses `quantization_config` of a `config.json` into one of the supported schemes, or refuses it.

The tensors, not lists of names, tell which modules are quantised; see `quantized_parts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trunkline_server.errors import UnsupportedFormat, quoted
from trunkline_server.models.keys import Keys

_HINT = "use the unquantised model or a GGUF file"
MAX_GROUP_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ (arXiv:2210.17323), as AutoGPTQ and GPTQModel store it.

    bits: 4 or 8; group_size: inputs that share a scale, None for all; zero_offset: added to stored zero points, 1 for
    the format "gptq" and 0 for "gptq_v2".
    """

    bits: int
    group_size: int | None
    zero_offset: int


@dataclass(frozen=True, slots=True)
class Awq:
    """AWQ (arXiv:2306.00978) of 4 bits, as AutoAWQ's "gemm" version stores it."""

    group_size: int | None


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """The format "pack-quantized" of `compressed-tensors`: 4-bit or 8-bit integers packed into 32-bit words.

    Activations are not quantised. is_symmetric: no group has a zero point.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool = True


@dataclass(frozen=True, slots=True)
class EightBits:
    """Weights of one byte, with one scale for each row, for the whole weight, or for each block.

    is_float: e4m3 if True, i8 otherwise.
    activations: "none" (not quantised), "dynamic" (rounded with a scale for each row) or "static" (rounded with a scale
        from the checkpoint).
    scale_name: suffix of the tensor that holds the scale.
    scale_divisor: the stored number is divided by it to give the scale.
    input_limit: see `activation_scale_ub` of `fbgemm_fp8`.
    block: rows and columns that share a scale (arXiv:2412.19437, section 3.3.2). Activations are then not quantised,
        which is closer to the model than the rounding of the tools that write such files.
    """

    is_float: bool
    activations: str
    scale_name: str = "weight_scale"
    scale_divisor: float = 1.0
    input_limit: float | None = None
    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FourBitFloats:
    """NF4 and FP4 of bitsandbytes (arXiv:2305.14314): a table of 16 numbers and a scale for each block of elements."""


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Experts in MXFP4 (OCP Microscaling Formats, version 1.0), as GPT-OSS stores them: stacks of all of a layer."""


Quantization = Gptq | Awq | PackedIntegers | EightBits | FourBitFloats | Mxfp4


def parse_quantization(path: Path, config: Mapping[str, object]) -> Quantization | None:
    """Returns the scheme that a config states, or None if it states none.

    path: the `config.json`, for messages; config: its contents. Raises DamagedFile, and UnsupportedFormat with the
    scheme's name.
    """
    keys = _Keys(path, config).nested("quantization_config")
    if keys is None:
        return None
    method = keys.text("quant_method")
    parse = _METHODS.get(method)
    if parse is None:
        raise keys.refused(
            f"weights quantised by {quoted(method)}", f"supported methods are {', '.join(sorted(_METHODS))}"
        )
    return parse(keys)


class _Keys(Keys):
    def block(self, key: str) -> tuple[int, int]:
        """Returns the rows and columns of a block."""
        value = self.get(key)
        sizes = [size for size in value if type(size) is int] if isinstance(value, list) else []
        if not isinstance(value, list) or len(value) != 2 or sizes != value:
            raise self.wrong(key, "two whole numbers")
        if not all(1 <= size <= MAX_GROUP_SIZE for size in sizes):
            raise self.refused(f"`{key}` {quoted(str(value))}")
        return sizes[0], sizes[1]

    def group_size(self, default: int | None = None) -> int | None:
        """Returns the number of inputs that share a scale; None for all (-1 in the file)."""
        size = self.integer("group_size", default)
        if size == -1:
            return None
        if not 1 <= size <= MAX_GROUP_SIZE or size % 16 != 0:
            raise self.refused(f"`group_size` {size}", "supported are multiples of 16, and -1")
        return size

    def refused(self, what: str, hint: str = _HINT) -> UnsupportedFormat:
        where = self.prefix.removesuffix(".")
        return UnsupportedFormat(f"`{self.path}` has {what} in `{where}`, which is not supported", hint=hint)

    def refuse_unless(self, key: str, allowed: tuple[object, ...]) -> None:
        """Refuses other values of a key that changes the meaning of the weights."""
        if self.get(key) not in allowed:
            raise self.refused(f"`{key}` {quoted(str(self.get(key)))}")


def _gptq(keys: _Keys) -> Quantization:
    bits = keys.integer("bits")
    if bits not in (4, 8):
        raise keys.refused(f"GPTQ of {bits} bits", "supported are 4 and 8 bits")
    keys.refuse_unless("checkpoint_format", (None, "gptq", "gptq_v2"))
    zero_offset = 0 if keys.get("checkpoint_format") == "gptq_v2" else 1
    return Gptq(bits, keys.group_size(), zero_offset)


def _awq(keys: _Keys) -> Quantization:
    bits = keys.integer("bits", 4) if keys.get("w_bit") is None else keys.integer("w_bit")
    if bits != 4:
        raise keys.refused(f"AWQ of {bits} bits", "supported are 4 bits")
    if keys.text("version", "gemm").lower() != "gemm":
        raise keys.refused(f"AWQ version {quoted(keys.text('version'))}", "the supported version is gemm")
    return Awq(keys.group_size(128))


def _fbgemm_fp8(keys: _Keys) -> Quantization:
    limit = None if keys.get("activation_scale_ub") is None else keys.number("activation_scale_ub")
    return EightBits(is_float=True, activations="dynamic", input_limit=limit)


def _fp8(keys: _Keys) -> Quantization:
    scheme = keys.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise keys.refused(f"`activation_scheme` {quoted(scheme)}", "supported are dynamic and static")
    if keys.get("weight_block_size") is not None:
        block = keys.block("weight_block_size")
        return EightBits(is_float=True, activations="none", scale_name="weight_scale_inv", block=block)
    return EightBits(is_float=True, activations=scheme)


def _compressed_tensors(keys: _Keys) -> Quantization:
    keys.refuse_unless("kv_cache_scheme", (None,))
    sparsity = keys.nested("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise keys.refused(f"sparse weights ({quoted(str(sparsity.get('format')))})")
    groups = keys.nested("config_groups")
    names = list(groups or ())
    if groups is None or len(names) != 1:
        raise keys.refused(f"{len(names)} `config_groups`", "all linear modules must share one scheme")
    group = groups.nested(names[0])
    weights = None if group is None else group.nested("weights")
    if group is None or weights is None:
        raise keys.refused("a scheme without quantised weights", "remove `quantization_config` from the config")
    group.refuse_unless("output_activations", (None,))
    stored_as = keys.text("format")
    if stored_as == "pack-quantized":
        return _packed_integers(group, weights)
    if stored_as in ("float-quantized", "int-quantized", "naive-quantized"):
        return _eight_bits(group, weights)
    raise keys.refused(
        f"the format {quoted(stored_as)}",
        "supported are pack-quantized, float-quantized, int-quantized, naive-quantized",
    )


def _packed_integers(group: _Keys, weights: _Keys) -> Quantization:
    group.refuse_unless("input_activations", (None,))
    weights.refuse_unless("type", ("int",))
    bits = weights.integer("num_bits")
    if bits not in (4, 8):
        raise weights.refused(f"integers of {bits} bits", "supported are 4 and 8 bits")
    weights.refuse_unless("strategy", ("group", "channel"))
    is_grouped = weights.text("strategy") == "group"
    return PackedIntegers(bits, weights.group_size() if is_grouped else None, weights.boolean("symmetric", True))


def _eight_bits(group: _Keys, weights: _Keys) -> Quantization:
    is_float = weights.text("type") == "float"
    weights.refuse_unless("type", ("float", "int"))
    weights.refuse_unless("num_bits", (8,))
    weights.refuse_unless("strategy", ("channel", "tensor", "block"))
    weights.refuse_unless("symmetric", (True, None))
    if weights.text("strategy") == "block":
        return EightBits(is_float=is_float, activations="none", block=weights.block("block_structure"))
    inputs = group.nested("input_activations")
    if inputs is None:
        return EightBits(is_float=is_float, activations="none")
    inputs.refuse_unless("num_bits", (8,))
    inputs.refuse_unless("type", (weights.text("type"),))
    inputs.refuse_unless("symmetric", (True, None))
    is_dynamic = inputs.boolean("dynamic", False)
    inputs.refuse_unless("strategy", ("token",) if is_dynamic else ("tensor",))
    return EightBits(is_float=is_float, activations="dynamic" if is_dynamic else "static")


def _bitsandbytes(keys: _Keys) -> Quantization:
    if keys.boolean("load_in_8bit", False):
        # The stored number is the row's largest magnitude (arXiv:2208.07339).
        return EightBits(is_float=False, activations="none", scale_name="SCB", scale_divisor=127.0)
    if not keys.boolean("load_in_4bit", False):
        raise keys.refused("bitsandbytes with neither 4 nor 8 bits")
    keys.refuse_unless("bnb_4bit_quant_storage", (None, "uint8"))
    return FourBitFloats()


def _mxfp4(keys: _Keys) -> Quantization:
    return Mxfp4()


_METHODS = {
    "gptq": _gptq,
    "awq": _awq,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}

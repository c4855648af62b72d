"""Loads a checkpoint's weights onto the device, in the kinds that the kernels multiply with.

Several threads take matrices in turn, the largest first, and read their bytes from the mapped file through pinned
buffers (`staging.py`). Conversion and repacking run on the device, on the thread's own stream.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, chain
from types import MappingProxyType

import torch

from trunkline_server.backends.cuda.finite import not_finite
from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.quantized.checkpoints import quantized_weight
from trunkline_server.backends.cuda.quantized.four_bits import BLOCK, TABLES, find_quantizer
from trunkline_server.backends.cuda.quantized.gguf import GROUPED_FORMATS, gguf_weight
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.stack import stacked
from trunkline_server.backends.cuda.staging import Staging
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight, DeviceWeights
from trunkline_server.errors import DamagedFile, DoesNotFit, quoted
from trunkline_server.weights.checkpoint import Checkpoint
from trunkline_server.weights.dequantize import dequantize, order_heads
from trunkline_server.weights.places import expert_stack, head_stack, is_expert, is_head
from trunkline_server.weights.quantization import EightBits, FourBitFloats, Mxfp4, Quantization
from trunkline_server.weights.quantize import FP8, WHOLE_MODEL, is_quantizable
from trunkline_server.weights.quantized_parts import FLOATS, Part, quantization_state
from trunkline_server.weights.tensor import Tensor, Weight

logger = logging.getLogger(__name__)

# More threads read no faster than the bus copies.
MAX_THREADS = 8
# Projections that are multiplied with the same x.
STACKS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_nope", "self_attn.q_rope"),
    ("self_attn.kv_a", "self_attn.k_rope"),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    ("attn.query", "attn.key", "attn.value"),
    ("mlp.gate", "mlp.up"),
    ("mixer.qkv_proj", "mixer.gate_proj", "mixer.strength_proj", "mixer.step_proj"),
)
# torch's dtypes for the formats in files.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# The same for parts of quantised modules.
_PART_DTYPES = {
    **_DTYPES, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip

# The scheme of matrices that are rounded to FP8, and elements that are rounded at a time.
_ROUNDED = EightBits(is_float=True, activations="dynamic")
_ROUNDED_ELEMENTS = 1 << 24


def default_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """Returns the dtype of activations: f16 if the checkpoint has f16 matrices, otherwise bf16."""
    formats: set[str] = set()
    for name in checkpoint.names():
        # Stacked experts share a format, and some checkpoints copy each.
        if not name.endswith(("_proj.weight", ".query.weight")) or (".experts." in name and ".experts.0." not in name):
            continue
        parts = checkpoint.stored_parts(name)
        # The dtype of scales, unless it is f32, is that of the model before it was quantised.
        formats |= {part.dtype for part in parts.values() if part.dtype in FLOATS}
        formats |= set() if parts else {checkpoint.encoded(name).format}
    return torch.float16 if "F16" in formats else torch.bfloat16


def load_weights(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    *,
    rounds_to: str | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> DeviceWeights:
    """Loads all weights of a checkpoint onto the device and waits for them.

    dtype: of dense matrices and of activations. rounds_to: `fp8`, `nf4` or `fp4`, to which dense matrices of layers are
    rounded. on_progress: called with the part of the bytes that is loaded, from 0 to 1.
    Raises DoesNotFit, UnsupportedFormat, and DamagedFile if a number is not finite in `dtype`.
    """
    scheme = _ROUNDED if rounds_to == FP8 else checkpoint.quantization
    if isinstance(scheme, EightBits) and scheme.is_float and not card_of(device).multiplies_fp8:
        logger.info(
            "multiplying FP8 weights as %s: a GPU of compute capability %s has no FP8 products",
            str(dtype).removeprefix("torch."), card_of(device).name,
        )  # fmt: skip
    loader = _Loader(checkpoint, device, dtype, rounds_to, on_progress)
    try:
        return loader.load()
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise DoesNotFit(
            f"the weights take about {loader.num_source_bytes >> 20} MiB, but the device has {total >> 20} MiB, "
            f"of which {free >> 20} MiB were left when one did not fit",
            hint="choose a smaller or quantised model, or stop other processes on the device",
        ) from error


class _Loader:
    """One load. Its threads share nothing that they change."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        rounds_to: str | None,
        on_progress: Callable[[float], None] | None,
    ) -> None:
        self._rounds_to, self._on_progress = rounds_to, on_progress
        self._checkpoint, self._device, self._dtype = checkpoint, device, dtype
        # Keyed by stored name, so that a tied head is loaded once.
        self._tensors: dict[str, Weight] = {}
        self._aliases: dict[str, str] = {}
        # Weights of quantised modules, which are not among the tensors.
        self._parts: dict[str, Mapping[str, Part]] = {}
        for name in checkpoint.names():
            if parts := checkpoint.parts(name):
                self._parts[name] = parts
                continue
            tensor = checkpoint.encoded(name)
            self._tensors[tensor.name] = tensor
            if tensor.name != name:
                self._aliases[name] = tensor.name
        self.num_source_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())
        self.num_source_bytes += sum(part.data.nbytes for parts in self._parts.values() for part in parts.values())
        # Norms and biases on the device, before any matrix.
        self._vectors: dict[str, torch.Tensor] = {}
        self._local = threading.local()

    def load(self) -> DeviceWeights:
        self._vectors |= {name: self._vector(one) for name, one in self._tensors.items() if len(one.shape) == 1}
        if self._device.type == "cuda":
            # Other streams read them.
            torch.cuda.synchronize(self._device)
        stacks = sorted(self._stacks(), key=lambda names: -sum(map(self._num_bytes, names)))
        num_threads = min(MAX_THREADS, os.cpu_count() or 1, len(stacks))
        with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as pool:
            matrices, num_done = list[DeviceWeight](), 0
            for names, made in zip(stacks, pool.map(self._make, stacks), strict=True):
                matrices += made
                num_done += sum(map(self._num_bytes, names))
                if self._on_progress is not None:
                    self._on_progress(num_done / self.num_source_bytes)
        dense = chain.from_iterable(matrix.slices for matrix in matrices if isinstance(matrix, DenseWeight))
        if num_dequantised := sum(self._kind(name) != "dense" for name in dense):
            fields = {"matrices": num_dequantised, "dtype": str(self._dtype).removeprefix("torch.")}
            logger.info("quantised matrices of experts or heads became dense", extra={"fields": fields})
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            # Frees memory that was only needed for repacking, on streams that no longer exist.
            torch.cuda.empty_cache()
        bad = [name for name, vector in self._vectors.items() if not bool(vector.isfinite().all())]
        if (name := bad[0] if bad else not_finite(matrices)) is not None:
            raise DamagedFile(self._checkpoint.path, f"tensor {quoted(name)} has a number that is not finite")
        return DeviceWeights(matrices, self._vectors, self._aliases)

    def _stacks(self) -> Iterator[list[str]]:
        """Yields the names of the tensors of each matrix."""
        names = [name for name, tensor in self._tensors.items() if len(tensor.shape) == 2]
        names += self._parts
        taken: set[str] = set()
        for name in names:
            if name in taken:
                continue
            stack = self._stack_of(name)
            taken.update(stack)
            yield stack

    def _stack_of(self, name: str) -> list[str]:
        """Returns the names of all weights that one product multiplies, this one among them."""
        config = self._checkpoint.config
        if whole := expert_stack(name, config.experts.num_experts) or head_stack(name, config.num_heads):
            return whole
        for projections in STACKS:
            prefix, found, rest = name.partition(projections[0])
            if found and rest == ".weight":
                stack = [f"{prefix}{projection}.weight" for projection in projections]
                if len({self._kind(member) for member in stack}) == 1:
                    return stack
        return [name]

    def _kind(self, name: str) -> str | None:
        """Returns a kind, or None if there is no such weight; only weights of the same kind are stacked."""
        if name in self._parts:
            return "quantized"
        tensor = self._tensors.get(name)
        return None if tensor is None else "dense" if tensor.format in _DTYPES else tensor.format

    def _num_bytes(self, name: str) -> int:
        if name in self._parts:
            return sum(part.data.nbytes for part in self._parts[name].values())
        return self._tensors[name].num_bytes

    def _make(self, names: Sequence[str]) -> list[DeviceWeight]:
        """Makes the matrix of a stack, or its members if they cannot be combined."""
        is_whole = is_expert(names[0]) or is_head(names[0])
        if all(name in self._parts for name in names) and self._stays_quantized(names[0]):
            with self._thread_staging() as staging:
                members = [self._quantized(name, staging) for name in names]
                with staging.on_stream():
                    stack = stacked(members)
            sizes = {name: member.num_outputs for name, member in zip(names, members, strict=True)}
            if stack is not None and not (is_whole and isinstance(stack, GroupedWeight) and stack.order is not None):
                return [self._with_names(stack, sizes)]
            if not is_whole:
                return [
                    self._with_names(member, {name: sizes[name]}) for name, member in zip(names, members, strict=True)
                ]
        weights = [self._tensors.get(name) or self._checkpoint.tensor(name) for name in names]
        tensors = [weight if isinstance(weight, Tensor) else weight.read() for weight in weights]
        with self._thread_staging() as staging:
            matrix = self._matrix(tensors, staging)
        return [self._with_names(matrix, {tensor.name: tensor.shape[0] for tensor in tensors})]

    def _with_names(self, matrix: DeviceWeight, sizes: Mapping[str, int]) -> DeviceWeight:
        """Adds the names of the weights in a matrix, and their biases. sizes: their rows, in order."""
        ends = list(accumulate(sizes.values()))
        slices = {name: (end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        biases = {name: self._vectors.get(name.removesuffix(".weight") + ".bias") for name in sizes}
        bias = None
        if any(one is not None for one in biases.values()):
            zeros = {name: torch.zeros(sizes[name], device=self._device) for name, one in biases.items() if one is None}
            bias = torch.cat([zeros[name] if one is None else one for name, one in biases.items()])
        return replace(matrix, slices=MappingProxyType(slices), bias=bias)

    def _stays_quantized(self, name: str) -> bool:
        """Returns True if a module's parts are converted on the device. MXFP4's are a tensor in GGUF's format."""
        return not is_head(name) and not isinstance(self._checkpoint.quantization, Mxfp4)

    def _quantized(self, name: str, staging: Staging) -> DeviceWeight:
        parts = {}
        for suffix, part in self._parts[name].items():
            if part.dtype not in _PART_DTYPES:
                continue  # descriptions, read from the mapped file
            with staging.on_stream():
                raw = torch.empty(part.data.nbytes, dtype=torch.uint8, device=self._device)
            staging.copy(part.data, raw)
            with staging.on_stream():
                parts[suffix] = raw.view(_PART_DTYPES[part.dtype]).view(part.shape)
        scheme = self._checkpoint.quantization
        assert scheme is not None, "parts are only found under a scheme"
        with staging.on_stream():
            return self._converted(scheme, name, parts, quantization_state(self._parts[name]))

    def _converted(
        self, scheme: Quantization, name: str, parts: Mapping[str, torch.Tensor], state: Mapping[str, object]
    ) -> DeviceWeight:
        if isinstance(scheme, EightBits) and is_expert(name):
            # Their product takes activations as they are.
            scheme = replace(scheme, activations="none")
        multiplies_fp8 = card_of(self._device).multiplies_fp8
        return quantized_weight(scheme, name, parts, state, dtype=self._dtype, multiplies_fp8=multiplies_fp8)

    def _vector(self, weight: Weight) -> torch.Tensor:
        tensor = weight if isinstance(weight, Tensor) else weight.read()
        return torch.from_numpy(dequantize(tensor)).to(self._device)

    def _matrix(self, tensors: Sequence[Tensor], staging: Staging) -> DeviceWeight:
        stored_as, name = {tensor.format for tensor in tensors}, tensors[0].name
        if len(stored_as) == 1 and tensors[0].format in GROUPED_FORMATS and not is_head(name):
            parts = [self._raw(tensor, staging) for tensor in tensors]
            with staging.on_stream():
                return gguf_weight(tensors[0].format, parts, self._dtype)
        values = self._dense(tensors, staging)
        if self._rounds_to is not None and all(map(self._is_rounded, tensors)):
            with staging.on_stream():
                return self._rounded(name, values) if self._rounds_to == FP8 else self._in_four_bits(name, values)
        return DenseWeight.of(name, values)

    def _is_rounded(self, tensor: Tensor) -> bool:
        is_embedding = tensor.name in WHOLE_MODEL or tensor.name.startswith("embeddings.")
        has_blocks = self._rounds_to == FP8 or tensor.shape[-1] % BLOCK == 0
        return is_quantizable(tensor) and has_blocks and not is_embedding and not is_head(tensor.name)

    def _rounded(self, name: str, values: torch.Tensor) -> DeviceWeight:
        """Rounds rows to e4m3, so that the largest element of each becomes the largest number."""
        limit = torch.finfo(torch.float8_e4m3fn).max
        # A row of zeros has any scale.
        peaks = torch.maximum(values.amax(dim=1), -values.amin(dim=1)).float()
        scales = (peaks / limit).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = torch.empty(values.shape, dtype=torch.float8_e4m3fn, device=values.device)
        # The stack of a layer's experts is large, so little of it is in f32 at a time.
        step = max(1, _ROUNDED_ELEMENTS // values.shape[1])
        for begin in range(0, len(values), step):
            rows = slice(begin, begin + step)
            rounded[rows].copy_(values[rows].float() / scales[rows, None])
        return self._converted(_ROUNDED, name, {"weight": rounded, _ROUNDED.scale_name: scales}, {})

    def _in_four_bits(self, name: str, values: torch.Tensor) -> DeviceWeight:
        kind, (_, quantize) = self._rounds_to, find_quantizer()
        assert kind in TABLES, "what a weight is rounded to is checked before it is read"
        step = max(1, _ROUNDED_ELEMENTS // values.shape[1])
        begins = range(0, len(values), step)
        codes, scales = zip(*(quantize(values[begin : begin + step], kind) for begin in begins), strict=True)
        table = torch.tensor(TABLES[kind], device=values.device)
        parts = {"weight": torch.cat(codes), "weight.absmax": torch.cat(scales), "weight.quant_map": table}
        state = {"shape": list(values.shape), "blocksize": BLOCK}
        return self._converted(FourBitFloats(), name, parts, state)

    def _dense(self, tensors: Sequence[Tensor], staging: Staging) -> torch.Tensor:
        """Stacks tensors into one matrix [N, K] in the dtype."""
        num_rows, width = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
        with staging.on_stream():
            values = torch.empty(num_rows, width, dtype=self._dtype, device=self._device)
        begin = 0
        for tensor in tensors:
            part = values[begin : begin + tensor.shape[0]]
            begin += tensor.shape[0]
            if _DTYPES.get(tensor.format) == self._dtype and tensor.interleaved_heads is None:
                staging.copy(tensor.data, part.view(torch.uint8).view(-1))
                continue
            if tensor.format in _DTYPES:
                read = self._raw(tensor, staging).view(_DTYPES[tensor.format])
            else:
                read = torch.from_numpy(dequantize(tensor))
            with staging.on_stream():
                part.copy_(read)
        return values

    def _raw(self, tensor: Tensor, staging: Staging) -> torch.Tensor:
        """Returns a tensor's rows as stored, [N, bytes] u8, in the model's order."""
        with staging.on_stream():
            raw = torch.empty(tensor.shape[0], tensor.row_bytes, dtype=torch.uint8, device=self._device)
        staging.copy(tensor.data, raw.view(-1))
        with staging.on_stream():
            order_heads(raw, tensor)
        return raw

    @contextmanager
    def _thread_staging(self) -> Iterator[Staging]:
        """Yields this thread's buffers, and waits for their copies at the end."""
        if not hasattr(self._local, "staging"):
            self._local.staging = Staging(self._device)
        staging: Staging = self._local.staging
        yield staging
        staging.wait()

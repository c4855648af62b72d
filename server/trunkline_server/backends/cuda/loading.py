"""A checkpoint's weights onto the device, in the kinds that the kernels multiply with.

Several threads each take a matrix after the other, the largest first, and read its bytes from the mapped file through
pinned buffers (`staging.py`); what has to be converted or repacked is, on the device, on the thread's own stream.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType

import torch

from trunkline_server.backends.cuda.quantized.gguf import GROUPED_FORMATS, grouped_weight
from trunkline_server.backends.cuda.staging import Staging
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight, DeviceWeights
from trunkline_server.errors import DoesNotFit
from trunkline_server.weights.checkpoint import Checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import Tensor

# More threads than this read no faster than the bus copies.
MAX_THREADS = 8
# Projections that are multiplied with the same x.
STACKS = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj"))
# How torch reads what lies in the file.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Told bytes read and bytes in all, from any thread, one call at a time.
Progress = Callable[[int, int], None]


def default_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """Of activations: f16 where the checkpoint has f16 matrices, else bf16."""
    formats = {checkpoint.tensor(name).format for name in checkpoint.names() if name.endswith("_proj.weight")}
    return torch.float16 if "F16" in formats else torch.bfloat16


def load_weights(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> DeviceWeights:
    """All weights of a checkpoint, on the device.

    dtype: of dense matrices and of activations. Returns when all is there. Raises DoesNotFit, UnsupportedFormat.
    """
    loader = _Loader(checkpoint, device, dtype, progress)
    try:
        return loader.load()
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise DoesNotFit(
            f"the weights take about {loader.num_source_bytes >> 20} MiB, but the device has {total >> 20} MiB, "
            f"of which {free >> 20} MiB were left when one did not fit",
            hint="take a smaller or quantised model, or end what else uses the device",
        ) from error


class _Loader:
    """One load. Threads share nothing but the count of bytes."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None
    ) -> None:
        self._checkpoint, self._device, self._dtype, self._progress = checkpoint, device, dtype, progress
        # By stored name: a tied head comes once.
        self._tensors: dict[str, Tensor] = {}
        self._aliases: dict[str, str] = {}
        for name in checkpoint.names():
            tensor = checkpoint.tensor(name)
            self._tensors[tensor.name] = tensor
            if tensor.name != name:
                self._aliases[name] = tensor.name
        self.num_source_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())
        self._num_bytes_done = 0
        self._lock = threading.Lock()
        self._local = threading.local()

    def load(self) -> DeviceWeights:
        vectors = {name: self._vector(tensor) for name, tensor in self._tensors.items() if len(tensor.shape) == 1}
        stacks = [[self._tensors[name] for name in names] for names in self._stacks()]
        stacks.sort(key=lambda tensors: -sum(tensor.num_bytes for tensor in tensors))
        num_threads = min(MAX_THREADS, os.cpu_count() or 1, len(stacks))
        with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as pool:
            matrices = list(pool.map(lambda tensors: self._matrix(tensors, vectors), stacks))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            # Pieces that were only needed for repacking, kept by streams that are gone.
            torch.cuda.empty_cache()
        return DeviceWeights(matrices, vectors, self._aliases)

    def _stacks(self) -> Iterator[list[str]]:
        """Names of the tensors of each matrix."""
        names = [name for name, tensor in self._tensors.items() if len(tensor.shape) == 2]
        taken: set[str] = set()
        for name in names:
            if name in taken:
                continue
            stack = self._stack_of(name)
            taken.update(stack)
            yield stack

    def _stack_of(self, name: str) -> list[str]:
        for projections in STACKS:
            prefix, found, rest = name.partition(projections[0])
            if found and rest == ".weight":
                stack = [f"{prefix}{projection}.weight" for projection in projections]
                kinds = {(self._tensors[member].format in _DTYPES) or self._tensors[member].format for member in stack}
                if len(kinds) == 1:
                    return stack
        return [name]

    def _vector(self, tensor: Tensor) -> torch.Tensor:
        self._count(tensor.num_bytes)
        return torch.from_numpy(dequantize(tensor)).to(self._device)

    def _matrix(self, tensors: Sequence[Tensor], vectors: Mapping[str, torch.Tensor]) -> DeviceWeight:
        slices, begin = {}, 0
        for tensor in tensors:
            slices[tensor.name] = begin, begin + tensor.shape[0]
            begin += tensor.shape[0]
        bias = self._bias(slices, vectors)
        with self._thread_staging() as staging:
            if tensors[0].format in GROUPED_FORMATS:
                parts = [self._raw(tensor, staging) for tensor in tensors]
                with staging.on_stream():
                    return grouped_weight(
                        tensors[0].format, parts, num_inputs=tensors[0].shape[1], dtype=self._dtype,
                        slices=MappingProxyType(slices), bias=bias,
                    )  # fmt: skip
            return DenseWeight(
                num_outputs=begin, num_inputs=tensors[0].shape[1], dtype=self._dtype, slices=MappingProxyType(slices),
                bias=bias, values=self._dense(tensors, staging),
            )  # fmt: skip

    def _bias(self, slices: Mapping[str, tuple[int, int]], vectors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        names = [name.removesuffix(".weight") + ".bias" for name in slices]
        if not any(name in vectors for name in names):
            return None
        sizes = [end - begin for begin, end in slices.values()]
        parts = [
            vectors[name] if name in vectors else torch.zeros(size, device=self._device)
            for name, size in zip(names, sizes, strict=True)
        ]
        return torch.cat(parts)

    def _dense(self, tensors: Sequence[Tensor], staging: Staging) -> torch.Tensor:
        """The tensors below each other, [N, K] in the dtype."""
        num_rows, width = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
        with staging.on_stream():
            values = torch.empty(num_rows, width, dtype=self._dtype, device=self._device)
        begin = 0
        for tensor in tensors:
            part = values[begin : begin + tensor.shape[0]]
            begin += tensor.shape[0]
            if _DTYPES[tensor.format] == self._dtype and tensor.interleaved_head is None:
                staging.copy(tensor.data, part.view(torch.uint8).view(-1))
                continue
            raw = self._raw(tensor, staging)
            with staging.on_stream():
                part.copy_(raw.view(_DTYPES[tensor.format]))
        return values

    def _raw(self, tensor: Tensor, staging: Staging) -> torch.Tensor:
        """A tensor's rows as they are stored, [N, bytes] u8, in the model's order."""
        num_rows = tensor.shape[0]
        with staging.on_stream():
            raw = torch.empty(num_rows, tensor.row_bytes, dtype=torch.uint8, device=self._device)
        staging.copy(tensor.data, raw.view(-1))
        if tensor.interleaved_head is None:
            return raw
        with staging.on_stream():
            # Rows 0, h, 1, h + 1, ... of each head: see weights/naming.py.
            return raw.view(-1, tensor.interleaved_head // 2, 2, tensor.row_bytes).swapaxes(1, 2).reshape(num_rows, -1)

    @contextmanager
    def _thread_staging(self) -> Iterator[Staging]:
        """This thread's buffers; what was begun with them is done afterwards."""
        if not hasattr(self._local, "staging"):
            self._local.staging = Staging(self._device, self._count)
        staging: Staging = self._local.staging
        yield staging
        staging.wait()

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes_done += num_bytes
            if self._progress is not None:
                self._progress(self._num_bytes_done, self.num_source_bytes)

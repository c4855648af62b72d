"""What an adapter adds to the weights of a model, and reading it.

A weight W [N, K] with an adapter of rank R is W + scale * B A, where A is [R, K] and B is [N, R].

An `Adapter` only knows where its tensors are. It holds no descriptor and no mapping, so a file that becomes shorter
gives an error instead of SIGBUS. For 224 weights it takes 220 KB, so where thousands of adapters are registered, keep
only path and hash of each: opening one again takes 20 ms, and `load` notices if it has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trunkline_server.errors import DamagedFile, ModelNotFound, quoted
from trunkline_server.models.places import Place
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.gguf import TensorInfo
from trunkline_server.weights.identity import stamp
from trunkline_server.weights.tensor import Tensor
from trunkline_server.weights.tensor_parts import part_at

_DIGEST_BYTES = 32
# The bits that are all set in numbers that are not finite.
_EXPONENT_BITS: dict[str, np.unsignedinteger[Any]] = {
    "F32": np.uint32(0x7F800000),
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one weight. Weights that the file joins have the same tensors.

    a: [R, K]. b: [N, R], or more rows, of which those of `rows` are the weight's, as in `Place`.
    interleaved_heads: the order of these rows; see `Tensor`.
    """

    a: TensorInfo
    b: TensorInfo
    scale: float
    rows: tuple[tuple[int, int], ...] = ()
    interleaved_heads: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in a file.

    status: of the file when it was opened. rank: the largest. weights: by the names that `Ops.linear` takes.
    """

    path: Path
    status: os.stat_result
    rank: int
    weights: Mapping[str, LowRank]

    @property
    def tensors(self) -> list[TensorInfo]:
        """Returns each tensor once, in the order of names."""
        found = {tensor.name: tensor for weight in self.weights.values() for tensor in (weight.a, weight.b)}
        return [found[name] for name in sorted(found)]


class Factors(NamedTuple):
    """A [R, K] and B [N, R] of one weight, in memory. B may have `interleaved_heads`, which `dequantize` undoes."""

    a: Tensor
    b: Tensor
    scale: float


def content_hash(adapter: Adapter) -> str:
    """Returns a hash of the tensors and of all that decides what they add to the model, as 64 lower-case hex digits.

    Reads the file once, which may take long, so call it on a thread. The file's name and times have no influence.
    Raises ModelNotFound if the file is gone or has changed since it was opened, and DamagedFile for elements that are
    not finite.
    """
    digest = _begin_hash(adapter)
    for tensor in _read(adapter, digest):
        if not _is_finite(tensor):
            raise DamagedFile(adapter.path, f"tensor {quoted(tensor.name)} has elements that are not finite numbers")
    return digest.hexdigest()


def load(adapter: Adapter, expected_hash: str | None) -> dict[str, Factors]:
    """Reads an adapter with this `content_hash`, and returns the factors by the names of weights.

    expected_hash: None if it is known that the file had it when the adapter was opened.
    Raises ModelNotFound if the file is gone or has changed.
    """
    digest = None if expected_hash is None else _begin_hash(adapter)
    tensors = {tensor.name: tensor for tensor in _read(adapter, digest)}
    if digest is not None and digest.hexdigest() != expected_hash:
        raise _changed(adapter)
    factors = {}
    for name, weight in adapter.weights.items():
        b = part_at(tensors[weight.b.name], Place(weight.b.name, rows=weight.rows))
        b = replace(b, interleaved_heads=weight.interleaved_heads)
        factors[name] = Factors(tensors[weight.a.name], b, weight.scale)
    return factors


def _begin_hash(adapter: Adapter) -> hashlib.blake2b:
    """Hashes everything but the elements of tensors."""
    uses = [
        (name, weight.a.name, weight.b.name, weight.scale.hex(), weight.rows, weight.interleaved_heads)
        for name, weight in sorted(adapter.weights.items())
    ]
    tensors = [(tensor.name, tensor.format, tensor.shape) for tensor in adapter.tensors]
    return hashlib.blake2b(repr((uses, tensors)).encode(), digest_size=_DIGEST_BYTES)


def _is_finite(tensor: Tensor) -> bool:
    exponent = _EXPONENT_BITS.get(tensor.format)
    if exponent is None:
        return bool(np.isfinite(dequantize(tensor)).all())
    bits = np.frombuffer(tensor.data, exponent.dtype)
    return bool(((bits & exponent) != exponent).all())


def _read(adapter: Adapter, digest: hashlib.blake2b | None) -> Iterator[Tensor]:
    """Reads each tensor once, in the order of names, and hashes its bytes if there is a digest."""
    try:
        with adapter.path.open("rb", buffering=0) as file:
            for tensor in adapter.tensors:
                data = os.pread(file.fileno(), tensor.num_bytes, tensor.offset)
                if len(data) != tensor.num_bytes or stamp(os.fstat(file.fileno())) != stamp(adapter.status):
                    raise _changed(adapter)
                if digest is not None:
                    digest.update(data)
                yield Tensor(tensor.name, tensor.format, tensor.shape, memoryview(data))
    except OSError as error:
        raise ModelNotFound(f"cannot read adapter `{adapter.path}`: {error.strerror or error}") from error


def _changed(adapter: Adapter) -> ModelNotFound:
    return ModelNotFound(f"adapter `{adapter.path}` has changed", hint="register it again")

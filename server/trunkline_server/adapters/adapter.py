"""What an adapter adds to the weights of a model, and reading it.

A weight W [N, K] with an adapter of rank R is W + scale * B A, where A is [R, K] and B is [N, R]. With DoRA, each row
of that is then scaled to the length that the adapter has for it; see `dora.py`.

An `Adapter` only knows where its tensors are. It holds no descriptor and no mapping, so a file that becomes shorter
gives an error instead of SIGBUS. For 224 weights it takes 220 KB, so where thousands of adapters are registered, keep
only path and hash of each: opening one again takes little time, and `load` notices if it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trunkline_server._kernels import hash_tensors
from trunkline_server.adapters.dora import gain_of
from trunkline_server.errors import DamagedFile, ModelNotFound, quoted
from trunkline_server.models.places import Place
from trunkline_server.weights.checkpoint import Checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.gguf import TensorInfo
from trunkline_server.weights.identity import stamp
from trunkline_server.weights.tensor import Tensor
from trunkline_server.weights.tensor_parts import part_at

# A read ends with the tensor that reaches this size.
_MAX_READ_BYTES = 64 << 20
# The bits that are all set in numbers that are not finite, as bytes.
_EXPONENT_BITS = {"F32": b"\0\0\x80\x7f", "F16": b"\0\x7c", "BF16": b"\x80\x7f"}


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one weight. Weights that the file joins have the same tensors.

    a: [R, K]. b: [N, R], or more rows, of which those of `rows` are the weight's, as in `Place`.
    interleaved_heads: the order of these rows; see `Tensor`. magnitude: of each row of `b`; None without DoRA.
    """

    a: TensorInfo
    b: TensorInfo
    scale: float
    rows: tuple[tuple[int, int], ...] = ()
    interleaved_heads: tuple[int, int] | None = None
    magnitude: TensorInfo | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.a, self.b) if self.magnitude is None else (self.a, self.b, self.magnitude)


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
        found = {tensor.name: tensor for weight in self.weights.values() for tensor in weight.tensors}
        return [found[name] for name in sorted(found)]


class Factors(NamedTuple):
    """A [R, K] and B [N, R] of one weight, in memory. B may have `interleaved_heads`, which `dequantize` undoes.

    gain: [N], what multiplies each row of W + scale * B A, in the model's order; None without DoRA.
    """

    a: Tensor
    b: Tensor
    scale: float
    gain: NDArray[np.float32] | None = None


def content_hash(adapter: Adapter) -> str:
    """Returns a hash of the tensors and of all that decides what they add to the model, as 64 lower-case hex digits.

    Reads the file, which may take long, so call it on a thread. The file's name and times have no influence.
    Raises ModelNotFound if the file is gone or has changed since it was opened, and DamagedFile for elements that are
    not finite.
    """
    tensors = adapter.tensors
    parts = [(tensor.offset, tensor.num_bytes, _EXPONENT_BITS.get(tensor.format, b"")) for tensor in tensors]
    with _opened(adapter) as file:
        digest, index = hash_tensors(file.fileno(), _uses(adapter), parts)
    not_finite = [] if index is None else [tensors[index].name]
    others = [tensor for tensor in tensors if tensor.format not in _EXPONENT_BITS]
    not_finite += [tensor.name for tensor in _read(adapter, others) if not np.isfinite(dequantize(tensor)).all()]
    if not_finite:
        raise DamagedFile(adapter.path, f"tensor {quoted(not_finite[0])} has elements that are not finite numbers")
    return digest


def load(adapter: Adapter, open_base: Callable[[], Checkpoint]) -> dict[str, Factors]:
    """Reads an adapter, and returns the factors by the names of weights.

    open_base: opens the base model, whose weights DoRA needs. One is decoded at a time.
    Raises ModelNotFound if the file is gone or has changed since it was opened, and DamagedFile for magnitudes that
    are too large.
    """
    tensors = {tensor.name: tensor for tensor in _read(adapter, adapter.tensors)}

    def of_rows(info: TensorInfo, weight: LowRank) -> Tensor:
        part = part_at(tensors[info.name], Place(info.name, rows=weight.rows))
        return replace(part, interleaved_heads=weight.interleaved_heads)

    base, factors = None, {}
    for name, weight in adapter.weights.items():
        a, b, gain = tensors[weight.a.name], of_rows(weight.b, weight), None
        if weight.magnitude is not None:
            base = base or open_base()
            gain = gain_of(base.tensor(name), a, b, weight.scale, of_rows(weight.magnitude, weight))
            if not np.isfinite(gain).all():
                raise DamagedFile(adapter.path, f"tensor {quoted(weight.magnitude.name)} is too large for the model")
        factors[name] = Factors(a, b, weight.scale, gain)
    return factors


def _uses(adapter: Adapter) -> bytes:
    """Returns everything that is hashed but the elements of tensors."""
    uses = [
        (name, [tensor.name for tensor in weight.tensors], weight.scale.hex(), weight.rows, weight.interleaved_heads)
        for name, weight in sorted(adapter.weights.items())
    ]
    tensors = [(tensor.name, tensor.format, tensor.shape) for tensor in adapter.tensors]
    return repr((uses, tensors)).encode()


@contextmanager
def _opened(adapter: Adapter) -> Iterator[FileIO]:
    """Opens the file for reading. Raises ModelNotFound if it is gone or changes before the end."""
    try:
        with adapter.path.open("rb", buffering=0) as file:
            yield file
            if stamp(os.fstat(file.fileno())) != stamp(adapter.status):
                raise changed(adapter)
    except EOFError:
        raise changed(adapter) from None
    except OSError as error:
        raise ModelNotFound(f"cannot read adapter `{adapter.path}`: {error.strerror or error}") from error


def _read(adapter: Adapter, infos: Iterable[TensorInfo]) -> list[Tensor]:
    """Reads tensors into memory, neighbours in the file at once."""
    runs = list[list[TensorInfo]]()
    for info in sorted(infos, key=lambda info: info.offset):
        if runs and _end(runs[-1][-1]) == info.offset and info.offset - runs[-1][0].offset < _MAX_READ_BYTES:
            runs[-1].append(info)
        else:
            runs.append([info])
    tensors = []
    with _opened(adapter) as file:
        for run in runs:
            first, end = run[0].offset, _end(run[-1])
            data = memoryview(os.pread(file.fileno(), end - first, first))
            if len(data) != end - first:
                raise changed(adapter)
            for info in run:
                part = data[info.offset - first : _end(info) - first]
                tensors.append(Tensor(info.name, info.format, info.shape, part))
    return tensors


def _end(info: TensorInfo) -> int:
    return info.offset + info.num_bytes


def changed(adapter: Adapter) -> ModelNotFound:
    """Returns the error for an adapter whose file is another one than when it was opened."""
    return ModelNotFound(f"adapter `{adapter.path}` has changed", hint="register it again")

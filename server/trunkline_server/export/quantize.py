"""`trunkline quantize`: writes a model as a GGUF file with quantised matrices."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server import hub
from trunkline_server.errors import InvalidArgument, UnsupportedFormat
from trunkline_server.export.config_keys import CONVERTER_HINT, as_written, check_complete, config_keys, rope_divisors
from trunkline_server.export.gguf_writer import Data, Entry, Progress, Value, write
from trunkline_server.export.tokenizer_keys import tokenizer_keys
from trunkline_server.models.places import Place
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.gguf_checkpoint import ROWS, GgufCheckpoint
from trunkline_server.weights.places import gguf_place, interleaved_heads, rows_in_order
from trunkline_server.weights.quantize import KEPT, has_floats, quantized, quantized_format
from trunkline_server.weights.tensor import Tensor

if TYPE_CHECKING:
    from trunkline_server.weights.checkpoint import Checkpoint

# `general.file_type`: the format of most matrices, by the numbers of llama.cpp.
_FILE_TYPES = {"int8": 7, "int4": 3}


def quantize_model(model: str, out: Path, bits: str, revision: str | None) -> str:
    """Writes `model` to `out`, downloading it if need be, and returns what was done. Raises UserError, OSError."""
    if out.suffix != ".gguf":
        raise InvalidArgument(f"`{out}` is not the name of a GGUF file", hint="end it with `.gguf`")
    if out.exists():
        raise InvalidArgument(f"`{out}` exists", hint="choose another name, or remove it first")
    if not out.parent.is_dir():
        raise InvalidArgument(f"folder `{out.parent}` does not exist", hint="make it first")
    resolved = hub.resolve(model, revision=revision)
    checkpoint = open_checkpoint(resolved.path)
    if not has_floats(checkpoint):
        raise InvalidArgument(f"`{resolved.path}` is quantised already", hint="name the unquantised model")
    if isinstance(checkpoint, GgufCheckpoint):
        metadata, entries = _of_gguf(checkpoint, bits)
    else:
        metadata, entries = _of_safetensors(checkpoint, resolved.model_id, bits)
    write(out, metadata, entries, _shown())
    return f"wrote {out}, {out.stat().st_size >> 20} MiB; run `trunkline serve {out}`"


def _shown() -> Progress:
    """Returns a function that shows each tenth of the work on stderr."""
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        if done * 10 // total > shown:
            shown = done * 10 // total
            print(f"{10 * shown} % of {total >> 20} MiB written", file=sys.stderr, flush=True)  # noqa: T201

    return show


def _of_gguf(checkpoint: GgufCheckpoint, bits: str) -> tuple[dict[str, Value | bytes], list[Entry]]:
    """Returns the contents of a GGUF file with its matrices quantised; everything else is copied."""
    metadata: dict[str, Value | bytes] = {}
    for key in checkpoint.files[0].metadata:
        if not key.startswith("split."):
            metadata[key] = checkpoint.files[0].stored_value(key)
    metadata |= {"general.file_type": _FILE_TYPES[bits], "general.quantization_version": 2}
    # Files may be aligned in another way.
    metadata.pop("general.alignment", None)
    formats = _formats(checkpoint, bits)
    entries = []
    for file in checkpoint.files:
        for name, info in file.tensors.items():
            stored_as = formats.get(name) or info.format
            if stored_as != info.format and info.shape[-1] % 32 != 0:
                stored_as = info.format
            read = partial(_read, file.tensor(name), stored_as, file.path)
            entries.append(Entry(name, stored_as, info.shape, read))
    return metadata, entries


def _formats(checkpoint: GgufCheckpoint, bits: str) -> dict[str, str | None]:
    """Returns the formats of tensors by their names in the file, None for those that stay as they are."""
    formats: dict[str, str | None] = {}
    for name in checkpoint.names():
        if name == "lm_head.weight" and checkpoint.config.tie_word_embeddings:
            continue
        formats.setdefault(checkpoint.place(name).tensor, quantized_format(checkpoint.encoded(name), bits))
    return formats


def _read(tensor: Tensor, stored_as: str, path: Path) -> Data:
    """Returns the bytes of a tensor in another format, to which all its rows are quantised."""
    if tensor.format == stored_as:
        return tensor.data
    rows = replace(tensor, shape=(math.prod(tensor.shape[:-1]), tensor.shape[-1]))
    return quantized(rows, stored_as, path).data


def _of_safetensors(checkpoint: Checkpoint, name: str, bits: str) -> tuple[dict[str, Value | bytes], list[Entry]]:
    """Returns the contents of a GGUF file as llama.cpp's converter would write it, with quantised matrices."""
    config, path = as_written(checkpoint.config), checkpoint.path
    keys = config_keys(config, path)
    entries = [_entry(checkpoint, tensor, members, bits) for tensor, members in _members(checkpoint)]
    if (divisors := rope_divisors(config)) is not None:
        data = np.array(divisors, dtype="<f4").tobytes()
        entries.append(Entry("rope_freqs.weight", "F32", (len(divisors),), lambda: data))
    check_complete(config, keys, {entry.name: entry.shape[0] for entry in entries}, path)
    general: dict[str, Value] = {
        "general.name": name,
        "general.file_type": _FILE_TYPES[bits],
        "general.quantization_version": 2,
    }
    return {**keys, **general, **tokenizer_keys(path, config.vocab_size)}, entries


def _members(checkpoint: Checkpoint) -> Iterator[tuple[str, list[tuple[Place, str]]]]:
    """Yields the tensors of a GGUF file, each with the weights that it joins or stacks, in their order."""
    found: dict[str, list[tuple[Place, str]]] = {}
    for name in checkpoint.names():
        if name == "lm_head.weight" and checkpoint.config.tie_word_embeddings:
            continue
        place = gguf_place(name, as_written(checkpoint.config), ())
        if place != Place(place.tensor, index=place.index, rows=place.rows):
            raise UnsupportedFormat(
                f"tensor `{place.tensor}` of `{checkpoint.path}` cannot be written as GGUF", hint=CONVERTER_HINT
            )
        found.setdefault(place.tensor, []).append((place, name))
    for tensor, members in found.items():
        yield tensor, sorted(members, key=lambda member: (member[0].index or 0, member[0].rows))


def _entry(checkpoint: Checkpoint, name: str, members: list[tuple[Place, str]], bits: str) -> Entry:
    tensors = [checkpoint.encoded(member) for _, member in members]
    first = tensors[0]
    stored_as = quantized_format(first, bits)
    if stored_as is None:
        # llama.cpp has kernels for vectors and the scores of experts in F32 alone.
        stored_as = "F32" if len(first.shape) == 1 or first.name.endswith(KEPT) else first.format
    shape = (sum(tensor.shape[0] for tensor in tensors), *first.shape[1:])
    if members[0][0].index is not None:
        shape = (len(tensors), *first.shape)
    elif name.endswith(ROWS):
        shape = shape[1:]

    def read() -> bytes:
        return b"".join(_rows(checkpoint, member, stored_as) for _, member in members)

    return Entry(name, stored_as, shape, read)


def _rows(checkpoint: Checkpoint, name: str, stored_as: str) -> bytes:
    """Returns a weight in a format, with the rows of heads in the order of GGUF."""
    tensor = checkpoint.tensor(name)
    target = interleaved_heads(name, as_written(checkpoint.config), is_gguf=True)
    if stored_as == "F32":
        data = np.ascontiguousarray(dequantize(tensor), dtype="<f4").view(np.uint8).reshape(-1)
        tensor = replace(tensor, format="F32", data=data, interleaved_heads=None)
    elif tensor.format != stored_as:
        tensor = quantized(tensor, stored_as, checkpoint.path)
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1)
    if tensor.interleaved_heads == target:
        return rows.tobytes()
    order = np.arange(len(rows))
    if tensor.interleaved_heads is not None:
        order = rows_in_order(order, *tensor.interleaved_heads)
    if target is not None:
        order = order[np.argsort(rows_in_order(np.arange(len(rows)), *target))]
    return rows[order].tobytes()
